"""Convolutions and pools in NumPy; a batch is (channels, images, rows, columns)."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fedtiny.graph.arrays import Weights
from fedtiny.graph.ir import Node, Pair
from fedtiny.graph.shapes import transposed, windowed

Batch = NDArray[Any]
DENSE_FROM = 0.03  # kept share of a layer from which one dense product is faster
SMALL_RUN = 500  # values of a filter below which a call of its own costs more than it saves
MAX_GATHERED = 1 << 21  # values that are gathered at a time


def convolved(x: Batch, node: Node, weights: Weights) -> Batch:
    """Cross-correlation, dense or by kept weight, whichever is faster.

    A linear layer is one with a kernel of one pixel.
    """
    windows = _windows(x, node)
    shape, groups, filters = windows.shape[3:], node.groups, weights.shape[0]
    if len(weights.values) >= DENSE_FROM * weights.size:
        rows = windows.reshape(groups, weights.size // filters, prod(shape))
        dense = weights.dense().reshape(groups, filters // groups, -1)
        out = dense.astype(x.dtype, copy=False) @ rows
        return _biased(out.reshape(filters, *shape), weights)
    filter, channel, row, column = np.unravel_index(weights.positions, (*weights.shape, 1, 1)[:4])
    channel = channel + filter // (filters // groups) * weights.shape[1]
    return _summed(
        weights, shape, x.dtype, lambda part: windows[channel[part], row[part], column[part]]
    )


def _summed(
    weights: Weights, shape: tuple[int, ...], dtype: Any, gather: Callable[[slice], Batch]
) -> Batch:
    """Sum up what each filter's kept weights read, some filters at a time."""
    out = np.zeros((weights.shape[0], prod(shape)), dtype=dtype)
    filters, starts = np.unique(weights.filters, return_index=True)
    ends = np.append(starts[1:], len(weights.values))
    values = weights.values.astype(dtype, copy=False)
    most = max(1, MAX_GATHERED // max(1, prod(shape)))
    first = 0
    while first < len(filters):
        start = int(starts[first])
        last = max(first + 1, int(np.searchsorted(ends, start + most, side="right")))
        part, some = slice(start, int(ends[last - 1])), slice(first, last)
        read = gather(part).reshape(-1, prod(shape))
        _sum_runs(values[part], read, starts[some] - start, out, filters[some])
        first = last
    return _biased(out.reshape(-1, *shape), weights)


def _sum_runs(
    values: Batch, read: Batch, starts: NDArray[Any], out: Batch, filters: NDArray[Any]
) -> None:
    """Add up runs of rows, one run a filter; many small ones in one go."""
    if read.size < SMALL_RUN * len(starts):
        read *= values[:, np.newaxis]
        out[filters] = np.add.reduceat(read, starts, axis=0)
        return
    ends = [*starts[1:], len(values)]
    for filter, start, end in zip(filters, starts, ends, strict=True):
        np.dot(values[start:end], read[start:end], out=out[filter])


def _biased(x: Batch, weights: Weights) -> Batch:
    if weights.bias is not None:
        x += by_channel(weights.bias, x)
    return x


def by_channel(values: NDArray[Any], like: Batch) -> Batch:
    """One value a channel, for all images and pixels."""
    return values.astype(like.dtype, copy=False).reshape(-1, 1, 1, 1)


def convolved_transposed(x: Batch, node: Node, weights: Weights) -> Batch:
    """The transposed convolution: what each value adds to every place of its window."""
    channels, images, *size = x.shape
    shape = transposed(node, [(channels, *size)])
    (down, right), (top, left) = node.stride, node.padding
    sides = zip(size, node.stride, node.span, node.output_padding, strict=True)
    whole = ((n - 1) * step + span + more for n, step, span, more in sides)
    out = np.zeros((node.channels, images, *whole), dtype=x.dtype)
    grouped = x.reshape(node.groups, channels // node.groups, -1)
    taps = weights.dense().reshape(node.groups, channels // node.groups, -1, *node.kernel)
    for row, column in np.ndindex(*node.kernel):
        tap = taps[..., row, column].swapaxes(1, 2).astype(x.dtype, copy=False)
        added = (tap @ grouped).reshape(node.channels, *x.shape[1:])
        first, second = row * node.dilation[0], column * node.dilation[1]
        rows = slice(first, first + (size[0] - 1) * down + 1, down)
        columns = slice(second, second + (size[1] - 1) * right + 1, right)
        out[:, :, rows, columns] += added
    cut = out[:, :, top : top + shape[1], left : left + shape[2]]
    return _biased(np.ascontiguousarray(cut), weights)


def max_pooled(x: Batch, node: Node) -> Batch:
    """The largest of each window; padding never wins."""
    found: Batch = _windows(x, node, -np.inf, -np.inf).max(axis=(1, 2))
    return found


def mean_pooled(x: Batch, node: Node) -> Batch:
    """Means of windows; padding counts where the step says so, what lies beyond it never."""
    counted = np.full_like(x[:1, :1], 1)
    shares = _windows(counted, node, 1.0 if node.count_padding else 0.0).sum(axis=(1, 2))
    found: Batch = _windows(x, node).sum(axis=(1, 2)) / shares
    return found


def adaptively_pooled(x: Batch, size: Pair) -> Batch:
    """Means over windows that cut the image into so many rows and columns, as torch cuts it."""
    for axis, parts in zip((2, 3), size, strict=True):
        side = x.shape[axis]
        cuts = [(i * side // parts, -(-(i + 1) * side // parts)) for i in range(parts)]
        means = [x.take(range(*cut), axis).mean(axis, keepdims=True) for cut in cuts]
        x = np.concatenate(means, axis)
    return x


def _windows(x: Batch, node: Node, fill: float = 0.0, beyond: float = 0.0) -> Batch:
    """What each place of a kernel reads: (channels, *kernel, images, rows, columns).

    Padding holds `fill`; `beyond` it a last window in ceil mode may reach.
    """
    channels, images, *size = x.shape
    _, *places = windowed(node, [(channels, *size)])
    around = list(zip(node.padding, node.ends, strict=True))
    x = _padded(x, around, fill)
    ends = [
        max(0, (n - 1) * stride + span - side)
        for n, stride, span, side in zip(places, node.stride, node.span, x.shape[2:], strict=True)
    ]
    x = _padded(x, [(0, end) for end in ends], beyond)
    (down, right), (row, column) = node.stride, node.dilation
    c, n, h, w = x.strides
    shape = (channels, *node.kernel, images, *places)
    steps = (c, h * row, w * column, n, h * down, w * right)
    return as_strided(x, shape, steps, writeable=False)


def _padded(x: Batch, around: list[Pair], fill: float) -> Batch:
    if not any(map(any, around)):
        return x
    return np.pad(x, ((0, 0), (0, 0), *around), constant_values=fill)
