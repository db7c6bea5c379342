"""The convolution and linear layers of a network in the order in which it runs them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import nn

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph
from fedtiny.graph.operations import OPERATIONS
from fedtiny.models import Traced
from fedtiny.models.param_spec import Shape

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


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


def runs_of_layers(model: nn.Module, shape: Shape, graph: Traced) -> list[LayerProfile]:
    """Every run of a layer in one pass: read off the graph, or watched where there is none."""
    return _of_graph(graph) if isinstance(graph, Graph) else _watched(model, shape)


def once_each(runs: Iterable[LayerProfile]) -> tuple[LayerProfile, ...]:
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

    def note(name: str, layer: Any, output: torch.Tensor) -> None:
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
