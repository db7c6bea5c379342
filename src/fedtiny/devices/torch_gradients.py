"""The largest gradients of pruned weights, in memory for those alone (Alg. 2, line 12)."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtiny.devices.torch_layers import changed, frozen_statistics
from fedtiny.errors import ModelError
from fedtiny.sparse.mask import Indices, Mask
from fedtiny.sparse.top import SLAB_PER_COUNT, TopBuffer
from fedtiny.sparse.vector import SparseVector

SLAB = 1 << 22  # gradients that are looked at in one go


class HostTop:
    """Feeds a buffer of size a with what a layer's pruned weights get.

    Gradients come in slabs, a run of filters each, in order of position.
    """

    def __init__(self, size: int, count: int, kept: Indices) -> None:
        self.buffer = TopBuffer(size, count)
        self.kept = kept
        self.slab_values = SLAB_PER_COUNT * self.buffer.count  # at most, but for one filter

    def take(self, first: int, slab: Tensor) -> None:
        """Look at the gradients from this position on."""
        here = slice(*np.searchsorted(self.kept, (first, first + slab.numel())))
        every = np.arange(slab.numel(), dtype=np.int32)
        pruned = np.delete(every, self.kept[here] - first)
        self.buffer.push(pruned + first, slab.reshape(-1).cpu().numpy()[pruned])

    def result(self) -> SparseVector:
        """The largest of them, sorted by position."""
        return self.buffer.result()


class DeviceTop:
    """The same, found where the gradients are: slabs come in order, so ties go to the lower one."""

    slab_values = SLAB

    def __init__(self, size: int, count: int, kept: Indices, device: torch.device) -> None:
        self.size = size
        self.count = min(count, size - len(kept))
        self.kept = kept
        self._indices = torch.empty(0, dtype=torch.int64, device=device)
        self._values = torch.empty(0, device=device)

    def take(self, first: int, slab: Tensor) -> None:
        values = slab.reshape(-1)
        start, stop = np.searchsorted(self.kept, (first, first + len(values)))
        pruned = torch.ones(len(values), dtype=torch.bool, device=values.device)
        held = torch.from_numpy(self.kept[start:stop].astype(np.int64) - first)
        pruned[held.to(values.device)] = False
        best = _largest(values, pruned, self.count)
        self._indices = torch.cat([self._indices, best + first])
        self._values = torch.cat([self._values, values[best]])
        if len(self._values) > self.count:
            best = _largest(
                self._values, torch.ones_like(self._values, dtype=torch.bool), self.count
            )
            self._indices, self._values = self._indices[best], self._values[best]

    def result(self) -> SparseVector:
        indices = self._indices.cpu().numpy().astype(np.int32)
        return SparseVector(self.size, indices, self._values.cpu().numpy())


def _largest(values: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Sorted positions of the largest magnitudes among those allowed, ties to the lower one."""
    scores = values.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    scores = torch.where(allowed, scores, -1.0)
    count = min(count, int(allowed.sum()))
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=values.device)
    cut = scores.topk(count, sorted=False).values.min()
    above = (scores > cut).nonzero().flatten()
    ties = (scores == cut).nonzero().flatten()[: count - len(above)]
    return torch.cat([above, ties]).sort().values


Top = HostTop | DeviceTop


def top_gradients(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    mask: Mask,
    counts: Mapping[str, int],
    top: Callable[[int, int, Indices], Top] = HostTop,
) -> dict[str, SparseVector]:
    """The `counts[layer]` largest gradients of each layer's pruned weights on one batch.

    This changes nothing. A frozen layer gives none: a weight grown there would stay zero for ever.
    No weight gradient is computed by autograd. As the backward pass reaches a layer, its weight
    gradient is made a slab of filters at a time and offered to the layer's top, so what is held is
    O(a) and never the gradient of a layer.
    """
    sizes = mask.param_spec.sizes
    tops = {name: top(sizes[name], a, mask.indices(name)) for name, a in counts.items()}
    trained = [name for name in tops if model.get_parameter(name).requires_grad]
    if trained:
        with ExitStack() as stack:
            stack.enter_context(frozen_statistics(model))
            stack.enter_context(changed(model.parameters(), "requires_grad", False))
            for name in trained:
                stack.enter_context(_tapped(model, name, tops[name]))
            F.cross_entropy(model(inputs).float(), labels).backward()
    return {name: top.result() for name, top in tops.items()}


def kept_gradients(
    model: nn.Module, inputs: Tensor, labels: Tensor, mask: Mask
) -> dict[str, NDArray[np.float32]]:
    """The gradient of each layer's kept weights on one batch; a frozen layer has one too."""
    weights = {name: model.get_parameter(name) for name in mask}
    with frozen_statistics(model), changed(weights.values(), "requires_grad", True):
        loss = F.cross_entropy(model(inputs).float(), labels)
        found = torch.autograd.grad(loss, [*weights.values()], materialize_grads=True)
    return {
        name: gradient.reshape(-1).float().cpu().numpy()[mask.indices(name)]
        for name, gradient in zip(weights, found, strict=True)
    }


@contextmanager
def _tapped(model: nn.Module, name: str, top: Top) -> Iterator[None]:
    """Feed a layer's top when the backward pass gets to the layer."""
    layer = model.get_submodule(name.removesuffix(".weight"))
    calls = 0

    def tap(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise ModelError(f"layer '{name}' runs twice in a pass, which pruning cannot handle")
        if not output.requires_grad:
            output = output.requires_grad_().clone()
        features = args[0].detach()
        output.register_hook(lambda gradient: _feed(top, layer, features, gradient))
        return output

    handle = layer.register_forward_hook(tap)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def _feed(top: Top, layer: nn.Module, features: Tensor, gradient: Tensor) -> None:
    filter_size = layer.weight[0].numel()  # type: ignore[index]
    filters = max(1, top.slab_values // filter_size)
    with torch.autocast(gradient.device.type, enabled=False):
        for start, slab in _slabs(layer, features.float(), gradient.float(), filters):
            top.take(start * filter_size, slab)


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
