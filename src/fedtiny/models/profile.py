"""What a network computes and holds for one image: the figures that costs are worked out from."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph
from fedtiny.graph.operations import OPERATIONS
from fedtiny.models import Traced, traced
from fedtiny.models.param_spec import Shape

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
SMALL_BATCH, LARGE_BATCH = 2, 4  # batch norm in training needs two images


@dataclass(frozen=True)
class LayerProfile:
    """A convolution or linear layer; figures are for one image."""

    name: str
    shape: Shape
    uses: int
    """How often an image uses each weight: the positions of a filter, 1 in a linear layer."""

    @property
    def weight(self) -> str:
        """Name of the layer's weight in the state dict."""
        return f"{self.name}.weight"

    @property
    def size(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def macs(self) -> int:
        """Multiply-adds of a dense forward pass."""
        return self.uses * self.size


@dataclass(frozen=True)
class Profile:
    """The layers of a network in the order it runs them, its size, and what training keeps.

    Activation bytes are what PyTorch's autograd saves in a forward pass in training mode, the
    network's own tensors left out and each piece of memory counted once: a part that grows with
    the batch, and one that does not (batch norm's means and deviations).
    """

    layers: tuple[LayerProfile, ...]
    parameters: int
    activation_bytes: int
    fixed_activation_bytes: int

    @property
    def macs(self) -> int:
        """Multiply-adds of a dense forward pass of one image."""
        return sum(layer.macs for layer in self.layers)


def profile(model: nn.Module, shape: Shape, graph: Traced | None = None) -> Profile:
    """Profile any network that takes images of this shape; on the meta device nothing is computed.

    The network itself is left as it is: a copy runs. What tracing it gave may be handed in.
    """
    graph = traced(model, shape) if graph is None else graph
    model = copy.deepcopy(model).train()
    with torch.random.fork_rng(devices=[]):
        layers = _once_each(runs_of_layers(model, shape, graph))
        small = _saved_bytes(model, (SMALL_BATCH, *shape))
        large = _saved_bytes(model, (LARGE_BATCH, *shape))
    by_image = (large - small) // (LARGE_BATCH - SMALL_BATCH)
    return Profile(
        layers=layers,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        activation_bytes=by_image,
        fixed_activation_bytes=small - SMALL_BATCH * by_image,
    )


def runs_of_layers(model: nn.Module, shape: Shape, graph: Traced) -> list[LayerProfile]:
    """Every run of a layer in one pass: read off the graph, or watched where there is none."""
    return _of_graph(graph) if isinstance(graph, Graph) else _watched(model, shape)


def _once_each(runs: Iterable[LayerProfile]) -> tuple[LayerProfile, ...]:
    """One profile a layer; a layer that runs several times uses its weights more often."""
    found: dict[str, LayerProfile] = {}
    for run in runs:
        first = found.get(run.name)
        found[run.name] = run if first is None else replace(first, uses=first.uses + run.uses)
    return tuple(found.values())


def _of_graph(graph: Graph) -> list[LayerProfile]:
    uses = {n.name: OPERATIONS[n.kind].uses(graph.shapes[i]) for i, n in graph.layers.items()}
    return [LayerProfile(n, shape, uses[n]) for n, shape in graph.weight_shapes.items()]


def _watched(model: nn.Module, shape: Shape) -> list[LayerProfile]:
    """By hooks, in a pass of one image in eval mode."""
    runs: list[LayerProfile] = []

    def note(name: str, layer: Any, output: Tensor) -> None:
        weights = tuple(layer.weight.shape)
        runs.append(LayerProfile(name, weights, uses=output.numel() // weights[0]))

    hooks = [
        module.register_forward_hook(lambda layer, _, out, name=name: note(name, layer, out))
        for name, module in model.named_modules()
        if isinstance(module, LAYERS)
    ]
    training = model.training
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *shape, device=device))
    except Exception as error:
        raise ModelError(f"the model does not take images of shape {shape}: {error}") from error
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return runs


def _saved_bytes(model: nn.Module, shape: Shape) -> int:
    """Bytes that autograd saves for the backward pass of a batch of this shape."""
    own = {_memory(t) for t in (*model.parameters(), *model.buffers())}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved.setdefault(_memory(tensor), tensor)
        return tensor

    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(torch.zeros(shape, device=device))
    except RuntimeError as error:
        raise ModelError(f"the model does not take images of shape {shape[1:]}: {error}") from error
    del output
    return sum(t.untyped_storage().nbytes() for memory, t in saved.items() if memory not in own)


def _memory(tensor: Tensor) -> int:
    """What two tensors that share memory have in common."""
    return int(tensor.untyped_storage()._cdata)
