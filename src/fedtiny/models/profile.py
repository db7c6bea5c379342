"""What a network computes and holds for one image: the figures that costs are worked out from."""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedtiny.errors import ModelError
from fedtiny.models.analysis import LAYERS
from fedtiny.models.param_spec import Shape

SMALL_BATCH, LARGE_BATCH = 2, 4  # batch norm in training needs two images


@dataclass(frozen=True)
class LayerProfile:
    """A convolution or linear layer; figures are for one image."""

    name: str
    kind: Literal["convolution", "linear"]
    shape: Shape
    uses: int
    """How often an image uses each weight: the positions of a filter, 1 in a linear layer."""
    inputs: int
    outputs: int

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


def profile(model: nn.Module, shape: Shape) -> Profile:
    """Profile any network that takes images of this shape; on the meta device nothing is computed.

    The network itself is left as it is: a copy runs.
    """
    model = copy.deepcopy(model).train()
    with _watched_layers(model) as layers, torch.random.fork_rng(devices=[]):
        small = _saved_bytes(model, (SMALL_BATCH, *shape))
    with torch.random.fork_rng(devices=[]):
        large = _saved_bytes(model, (LARGE_BATCH, *shape))
    by_image = (large - small) // (LARGE_BATCH - SMALL_BATCH)
    return Profile(
        layers=_layer_profiles(layers),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        activation_bytes=by_image,
        fixed_activation_bytes=small - SMALL_BATCH * by_image,
    )


@contextmanager
def _watched_layers(model: nn.Module) -> Iterator[list[LayerProfile]]:
    """Every run of a layer while the context lasts."""
    runs: list[LayerProfile] = []
    hooks = [
        module.register_forward_hook(
            lambda layer, args, out, name=name: runs.append(_run(name, layer, args[0], out))
        )
        for name, module in model.named_modules()
        if isinstance(module, LAYERS)
    ]
    try:
        yield runs
    finally:
        for hook in hooks:
            hook.remove()


def _run(name: str, layer: Any, features: Tensor, out: Tensor) -> LayerProfile:
    outputs = out.numel() // SMALL_BATCH
    return LayerProfile(
        name=name,
        kind="linear" if isinstance(layer, nn.Linear) else "convolution",
        shape=tuple(layer.weight.shape),
        uses=outputs // layer.weight.shape[0],
        inputs=features.numel() // SMALL_BATCH,
        outputs=outputs,
    )


def _layer_profiles(runs: list[LayerProfile]) -> tuple[LayerProfile, ...]:
    """One profile a layer; a layer that runs several times uses its weights more often."""
    uses: Counter[str] = Counter()
    for run in runs:
        uses[run.name] += run.uses
    first = {run.name: run for run in reversed(runs)}
    in_order = dict.fromkeys(run.name for run in runs)
    return tuple(
        LayerProfile(n, r.kind, r.shape, uses[n], r.inputs, r.outputs)
        for n, r in ((name, first[name]) for name in in_order)
    )


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
