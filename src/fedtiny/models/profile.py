"""What a network computes and holds for one image: the figures that costs are worked out from."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtiny.errors import ModelError
from fedtiny.models import Traced, traced
from fedtiny.models.layers import LayerProfile, once_each, runs_of_layers
from fedtiny.models.param_spec import Shape

__all__ = ["LayerProfile", "Profile", "profile"]

SMALL_BATCH, LARGE_BATCH = 2, 4  # batch norm in training needs two images


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
        layers = once_each(runs_of_layers(model, shape, graph))
        small = _saved_bytes(model, (SMALL_BATCH, *shape))
        large = _saved_bytes(model, (LARGE_BATCH, *shape))
    by_image = (large - small) // (LARGE_BATCH - SMALL_BATCH)
    return Profile(
        layers=layers,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        activation_bytes=by_image,
        fixed_activation_bytes=small - SMALL_BATCH * by_image,
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
