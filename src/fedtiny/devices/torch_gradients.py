"""Gradients of pruned weights, in memory for the few asked for alone (Alg. 2, line 12)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import reduce
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedtiny.devices.torch_layers import changed, frozen_statistics
from fedtiny.devices.torch_takers import HostTop, Taker, Top
from fedtiny.sparse.mask import Indices, Mask
from fedtiny.sparse.vector import SparseVector

Use = tuple[Tensor, Tensor]
"""What a layer read in a run of it, and the gradient of what it gave."""


def tops_of(
    mask: Mask, counts: Mapping[str, int], top: Callable[[int, int, Indices], Top] = HostTop
) -> dict[str, Top]:
    """A buffer for the `counts[layer]` largest gradients of each layer's pruned weights."""
    sizes = mask.param_spec.sizes
    return {name: top(sizes[name], a, mask.indices(name)) for name, a in counts.items()}


def top_gradients(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    mask: Mask,
    counts: Mapping[str, int],
    top: Callable[[int, int, Indices], Top] = HostTop,
) -> dict[str, SparseVector]:
    """The `counts[layer]` largest gradients of each layer's pruned weights on one batch."""
    tops = tops_of(mask, counts, top)
    feed_gradients(model, inputs, labels, tops)
    return {name: top.result() for name, top in tops.items()}


def feed_gradients(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    takers: Mapping[str, Taker],
    *,
    fisher: bool = False,
) -> None:
    """Show the gradient of each layer named, on one batch, to what takes it.

    This changes nothing. A frozen layer gives none: a weight grown there would stay zero for ever.
    No weight gradient is computed by autograd. As the backward pass reaches a layer, its weight
    gradient is made a slab of filters at a time and offered to the layer's taker, so what is held
    is O(a) and never the gradient of a layer. For `fisher` see `Engine.top_gradients`.
    """
    trained = [name for name in takers if model.get_parameter(name).requires_grad]
    if not trained:
        return
    with ExitStack() as stack:
        stack.enter_context(frozen_statistics(model))
        stack.enter_context(changed(model.parameters(), "requires_grad", False))
        for name in trained:
            stack.enter_context(_tapped(model, name, takers[name], fisher))
        F.cross_entropy(model(inputs).float(), labels).backward()


@contextmanager
def _tapped(model: nn.Module, name: str, taker: Taker, fisher: bool) -> Iterator[None]:
    """Feed a layer's taker when the backward pass has been to all uses of the layer."""
    layer = model.get_submodule(name.removesuffix(".weight"))
    calls, uses = 0, list[Use]()

    def tap(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if not output.requires_grad:
            output = output.requires_grad_().clone()
        features = args[0].detach()
        output.register_hook(lambda gradient: reached(features, gradient))
        return output

    def reached(features: Tensor, gradient: Tensor) -> None:
        uses.append((features, gradient))
        if len(uses) == calls:
            _feed(taker, layer, uses, fisher)
            uses.clear()

    handle = layer.register_forward_hook(tap)
    try:
        yield
        if uses:  # another use leads nowhere
            _feed(taker, layer, uses, fisher)
    finally:
        handle.remove()


@torch.no_grad()
def _feed(taker: Taker, layer: nn.Module, uses: Sequence[Use], fisher: bool) -> None:
    filter_size = layer.weight[0].numel()  # type: ignore[index]
    filters = max(1, taker.slab_values // filter_size)
    with torch.autocast(uses[0][1].device.type, enabled=False):
        uses = [(features.float(), gradient.float()) for features, gradient in uses]
        scales = _fisher_scales(layer, uses) if fisher else None
        slabs = [_slabs(layer, features, gradient, filters) for features, gradient in uses]
        for (start, slab), *more in zip(*slabs, strict=True):
            for _, other in more:
                slab = slab + other
            taker.take(start * filter_size, slab if scales is None else scales(start, slab))


def _fisher_scales(layer: nn.Module, uses: Sequence[Use]) -> Callable[[int, Tensor], Tensor]:
    """Divides the gradients from a filter on by the root of twice their Fisher information."""
    axis = -1 if isinstance(layer, nn.Linear) else 1
    inputs = reduce(torch.hypot, [_norms_along(features, axis) for features, _ in uses])
    outputs = reduce(torch.hypot, [_norms_along(gradient, axis) for _, gradient in uses])
    values = sum(features.numel() for features, _ in uses)
    inputs = _inverse(inputs / sqrt(values / len(inputs)))
    outputs = _inverse(outputs * sqrt(2 * len(uses[0][0])))
    groups = getattr(layer, "groups", 1)
    per_group, channels = len(outputs) // groups, len(inputs) // groups

    def scaled(start: int, slab: Tensor) -> Tensor:
        first = start // per_group * channels  # a slab never spans two groups
        apart = (1,) * (slab.dim() - 2)
        of_filters = outputs[start : start + len(slab)].view(-1, 1, *apart)
        return slab.mul_(of_filters).mul_(inputs[first : first + channels].view(1, -1, *apart))

    return scaled


def _norms_along(values: Tensor, axis: int) -> Tensor:
    """The root of the summed squares of what lies at each place of an axis."""
    others = [other for other in range(values.dim()) if other != axis % values.dim()]
    norms: Tensor = torch.linalg.vector_norm(values, dim=others, dtype=torch.float64)
    return norms


def _inverse(values: Tensor) -> Tensor:
    """One over each value; zero where there is nothing, whose gradients are zero too."""
    return torch.where(values > 0, 1 / values, 0.0).float().nan_to_num(posinf=0.0)


def _slabs(
    layer: nn.Module, features: Tensor, gradient: Tensor, filters: int
) -> Iterator[tuple[int, Tensor]]:
    """The weight gradient, a few filters at a time, with the number of the first filter."""
    if isinstance(layer, nn.Linear):
        features, gradient = features.flatten(0, -2), gradient.flatten(0, -2)
        for start in range(0, layer.out_features, filters):
            yield start, gradient[:, start : start + filters].T @ features
        return
    assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    for start, stop, group in _filter_runs(layer, filters):
        channels = layer.in_channels // layer.groups
        part = features[:, group * channels : (group + 1) * channels]
        yield start, _convolution_gradient(layer, part, gradient[:, start:stop], stop - start)


def _filter_runs(layer: Any, filters: int) -> Iterator[tuple[int, int, int]]:
    """Runs of at most so many filters that read the same channels: start, stop, group."""
    per_group = layer.out_channels // layer.groups
    for group in range(layer.groups):
        end = (group + 1) * per_group
        for start in range(group * per_group, end, filters):
            yield start, min(start + filters, end), group


def _convolution_gradient(layer: Any, features: Tensor, gradient: Tensor, filters: int) -> Tensor:
    features, padding = _padded(layer, features)
    shape = (filters, *layer.weight.shape[1:])
    result: Tensor = torch.ops.aten.convolution_backward(
        gradient.contiguous(),
        features,
        features.new_empty(1).expand(shape),
        None,
        layer.stride,
        padding,
        layer.dilation,
        False,
        [0] * len(layer.stride),
        1,
        [False, True, False],
    )[1]
    return result


def _padded(layer: Any, features: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Padding by zeros is left to the convolution; any other is done here, as the layer does."""
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return features, layer.padding
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    both_sides = layer._reversed_padding_repeated_twice
    return F.pad(features, both_sides, mode=mode), (0,) * len(layer.stride)
