"""Synaptic flow (SynFlow): what passes through a network of absolute weights."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from fedtiny.models.param_spec import Shape

PASSES_ON = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
CHANGES_FLOW = {
    *(F.relu6, F.hardtanh, F.hardswish, F.silu, F.gelu, F.tanh, torch.tanh, Tensor.tanh),
    *(F.group_norm, F.layer_norm, F.instance_norm),
    *(F.log_softmax, torch.log_softmax, Tensor.log_softmax),
}
"""What would hold flow up at a bound, or center it: it passes everything on, like batch norm.

Sigmoids are left: they are gates, and one that passed all on would square the flow.
"""
Positions = Mapping[str, NDArray[np.int32] | None]
"""Kept weights of each layer; None is all."""


@torch.no_grad()
def absolute_and_linear(model: nn.Module) -> nn.Module:
    """A copy with absolute weights in float64, whose batch norm passes everything on.

    Identity batch norm keeps the flow positive, so that no score is zero behind a zero gamma and
    a shortcut counts like any layer; float64 keeps a deep product from overflowing.
    """
    network = copy.deepcopy(model).double().eval()
    for parameter in network.parameters():
        parameter.abs_()
    for norm in (module for module in network.modules() if isinstance(module, _BatchNorm)):
        for name, value in PASSES_ON.items():
            if (tensor := getattr(norm, name)) is not None:
                tensor.fill_(value)
    return network


@contextmanager
def _deterministic() -> Iterator[None]:
    """Convolutions add in a fixed order."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic
    cudnn.deterministic = True
    try:
        yield
    finally:
        cudnn.deterministic = before


class _PassingOn(TorchFunctionMode):
    """However a network spells them, such functions give what they get."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return args[0] if function in CHANGES_FLOW else function(*args, **(kwargs or {}))


def flow(network: nn.Module, shape: Shape, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """|dR/dw| of some weights, where R is what an image of ones gives."""
    ones = torch.ones(1, *shape, dtype=torch.float64, device=weights[0].device)
    with _PassingOn():
        output = network(ones).sum()
    return [gradient.abs() for gradient in torch.autograd.grad(output, weights)]


def measure(
    model: nn.Module, shape: Shape, prunable: Sequence[str]
) -> Callable[[Positions], dict[str, NDArray[np.float64]]]:
    """A function that gives |w dR/dw| of the kept weights, the others being zero.

    A hundred passes of a large network are worth a GPU, if there is one; float64 leaves nothing to
    where they are computed.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = absolute_and_linear(model).to(device)
    named = dict(network.named_parameters())
    weights = {name: named[name].requires_grad_() for name in prunable}
    first = {name: weight.detach().clone() for name, weight in weights.items()}

    def scores(kept: Positions) -> dict[str, NDArray[np.float64]]:
        places = {
            name: slice(None) if own is None else torch.tensor(own, device=device).long()
            for name, own in kept.items()
        }
        with torch.no_grad():
            for name, weight in weights.items():
                values = weight.view(-1).zero_()
                values[places[name]] = first[name].view(-1)[places[name]]
        with _deterministic():
            gradients = flow(network, shape, list(weights.values()))
        return {
            name: (first[name] * gradient).view(-1)[places[name]].cpu().numpy()
            for name, gradient in zip(weights, gradients, strict=True)
        }

    return scores
