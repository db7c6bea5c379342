"""Synaptic flow (SynFlow): what passes through a network of absolute weights."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from fedtiny.errors import FedTinyError
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


LAYERS = {
    *(F.conv1d, F.conv2d, F.conv3d, F.linear),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
}
"""Functions whose outputs are units: channels or, of a linear layer, features.

What torch computes within a function of its own, as attention its projections, is not among them.
"""


@torch.no_grad()
def absolute_and_linear(model: nn.Module, *, biases: bool = True) -> nn.Module:
    """A copy with absolute weights in float64, whose batch norm passes everything on.

    Identity batch norm keeps the flow positive, so that no score is zero behind a zero gamma and
    a shortcut counts like any layer; float64 keeps a deep product from overflowing.
    """
    network = copy.deepcopy(model).double().eval()
    for name, parameter in network.named_parameters():
        parameter.data = parameter.abs().contiguous()
        if not biases and "bias" in name.rpartition(".")[2]:
            parameter.zero_()
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
    """However a network spells them, such functions give what they get.

    If flow is `normalized`, every unit of a layer passes on a mean of one.
    """

    def __init__(self, *, normalized: bool) -> None:
        super().__init__()
        self.normalized = normalized

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in CHANGES_FLOW:
            return args[0]
        output = function(*args, **(kwargs or {}))
        if self.normalized and function in LAYERS:
            return _normalized(output, -1 if function is F.linear else 1)
        return output


def _normalized(output: Tensor, units: int) -> Tensor:
    """Each unit over its mean, which is taken as given; one that nothing reaches stays at zero."""
    others = [axis for axis in range(output.ndim) if axis != units % output.ndim]
    mean = output.detach().mean(dim=others, keepdim=True)
    return output / torch.where(mean > 0, mean, 1)


def flow(
    network: nn.Module,
    shape: Shape,
    weights: Sequence[torch.Tensor],
    *,
    normalized: bool = False,
) -> list[torch.Tensor]:
    """dR/dw of some weights, where R is what an image of ones gives."""
    ones = torch.ones(1, *shape, dtype=torch.float64, device=weights[0].device)
    with _PassingOn(normalized=normalized):
        output = network(ones).sum()
    return [*torch.autograd.grad(output, weights)]


class SynapticFlow:
    """What flows through a network, its weights as initialized, and how to prune by it.

    A hundred passes of a large network are worth a GPU, if there is one; float64 leaves nothing to
    where they are computed. Positions are counted through the weights of all layers.

    Flow through a chain of layers gathers in few units: the more one lets through, the more weights
    behind it are kept. If it is `normalized`, all units of a layer let the same through. Biases are
    zero then, for they would stand in for the weights of a unit.
    """

    def __init__(
        self,
        model: nn.Module,
        shape: Shape,
        prunable: Sequence[str],
        *,
        normalized: bool = False,
    ) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.shape = shape
        self.normalized = normalized
        self.network = absolute_and_linear(model, biases=not normalized).to(device)
        named = dict(self.network.named_parameters())
        self.weights = [named[name].requires_grad_() for name in prunable]
        self.sizes = [weight.numel() for weight in self.weights]
        self.first = [weight.detach().reshape(-1).clone() for weight in self.weights]

    @property
    def device(self) -> torch.device:
        return self.first[0].device

    def scores(self, kept: Tensor) -> Tensor:
        """|w dR/dw| of the weights at some positions, in their order, the others being zero."""
        ends = torch.tensor([0, *self.sizes], device=self.device).cumsum(0)
        counts = torch.searchsorted(kept, ends).diff().tolist()
        places = [own - start for own, start in zip(kept.split(counts), ends[:-1], strict=True)]
        values = [first[own] for first, own in zip(self.first, places, strict=True)]
        with torch.no_grad():
            for weight, own, value in zip(self.weights, places, values, strict=True):
                weight.zero_().view(-1)[own] = value
        with _deterministic():
            gradients = flow(self.network, self.shape, self.weights, normalized=self.normalized)
        found = [gradient.reshape(-1)[own] for gradient, own in zip(gradients, places, strict=True)]
        return torch.cat(values).mul_(torch.cat(found).abs_())

    def layer_counts(self, prices: Sequence[float], totals: Sequence[int]) -> list[int]:
        """Kept weights of each layer, once all are pruned to one total after the other."""
        return prune_by(self.scores, self.sizes, prices, totals, self.device)


def prune_by(
    scores: Callable[[Tensor], Tensor],
    sizes: Sequence[int],
    prices: Sequence[float],
    totals: Sequence[int],
    device: torch.device | str = "cpu",
) -> list[int]:
    """Layer counts after pruning to each total by score over price, scored anew every time.

    One threshold for all layers, of which each keeps its best weight; ties to the lower position.
    """
    kept = torch.arange(sum(sizes), device=device)
    price = torch.tensor(prices, dtype=torch.float64, device=device)
    counts = list(sizes)
    for total in totals:
        values = scores(kept)
        for own, each in zip(values.split(counts), price, strict=True):
            own.div_(each)
            best = own.argmax()  # the place of what is no number, if there is any
            if not own[best].isfinite():
                raise FedTinyError(
                    "a score of some weight is not finite, so nothing can be pruned by it"
                )
            own[best] = torch.inf
        chosen = _highest(values, total)
        kept = kept[chosen]
        counts = [int(own.sum()) for own in chosen.split(counts)]
    return counts


def _highest(values: Tensor, count: int) -> Tensor:
    """Whether each value is among the `count` highest, as `sparse.top.highest`, on any device."""
    if values.is_cuda:
        cut = values.sort().values[-count]
    else:
        cut = torch.tensor(np.partition(values.numpy(), len(values) - count)[-count])
    chosen = values > cut
    ties = (values == cut).nonzero().view(-1)
    chosen[ties[: count - int(chosen.sum())]] = True
    return chosen
