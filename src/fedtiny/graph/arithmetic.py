"""What each operation computes, in NumPy; a batch is (channels, images, rows, columns)."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fedtiny.graph.ir import Kind, Node, Pair
from fedtiny.graph.weights import Lowered, Norm, Weights

Batch = NDArray[Any]
DENSE_FROM = 0.03  # kept share of a layer from which one dense product is faster
SMALL_RUN = 500  # values of a filter below which a call of its own costs more than it saves
MAX_GATHERED = 1 << 21  # values that are gathered at a time


def all_steps(net: Lowered, batch: Batch) -> list[Batch]:
    """What every node gives for a batch."""
    outputs: list[Batch] = []
    for node in net.graph.nodes:
        outputs.append(step(net, node, [outputs[i] for i in node.inputs] or [batch]))
    return outputs


def step(net: Lowered, node: Node, read: list[Batch]) -> Batch:
    """What one node gives for what it reads."""
    return FORMS[node.kind](net, node, *read)


def convolved(x: Batch, node: Node, weights: Weights) -> Batch:
    """Cross-correlation, dense or by kept weight, whichever is faster."""
    windows = _windows(x, node)
    shape = windows.shape[3:]
    if len(weights.values) >= DENSE_FROM * weights.size:
        rows = windows.reshape(weights.size // weights.shape[0], prod(shape))
        out = weights.dense().reshape(weights.shape[0], -1).astype(x.dtype, copy=False) @ rows
        return _biased(out.reshape(weights.shape[0], *shape), weights)
    _, channel, row, column = np.unravel_index(weights.positions, weights.shape)
    return _summed(
        weights, shape, x.dtype, lambda part: windows[channel[part], row[part], column[part]]
    )


def multiplied(x: Batch, weights: Weights) -> Batch:
    """A linear layer over something flat."""
    flat = x.reshape(weights.shape[1], -1)
    shape = (flat.shape[1], 1, 1)
    if len(weights.values) >= DENSE_FROM * weights.size:
        out = weights.dense().astype(x.dtype, copy=False) @ flat
        return _biased(out.reshape(weights.shape[0], *shape), weights)
    read = weights.positions % weights.shape[1]
    return _summed(weights, shape, x.dtype, lambda part: flat[read[part]].reshape(-1, *shape))


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
        x += _by_channel(weights.bias, x)
    return x


def normed(x: Batch, norm: Norm) -> Batch:
    """Batch norm with running statistics."""
    scale, shift = norm.scale_and_shift()
    return x * _by_channel(scale, x) + _by_channel(shift, x)


def _by_channel(values: NDArray[Any], like: Batch) -> Batch:
    return values.astype(like.dtype, copy=False).reshape(-1, 1, 1, 1)


def max_pooled(x: Batch, node: Node) -> Batch:
    """The largest value of each window."""
    found: Batch = _windows(x, node, -np.inf).max(axis=(1, 2))
    return found


def mean_pooled(x: Batch, node: Node) -> Batch:
    """Means of windows; padding counts where the step says so."""
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


def flattened(x: Batch) -> Batch:
    """All values of an image as channels."""
    return np.moveaxis(x, 1, -1).reshape(prod(x.shape) // x.shape[1], x.shape[1], 1, 1)


def _windows(x: Batch, node: Node, fill: float = 0.0) -> Batch:
    """What each place of a kernel reads: (channels, *kernel, images, rows, columns)."""
    (top, left), (down, right), kernel = node.padding, node.stride, node.kernel
    if top or left:
        x = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)), constant_values=fill)
    rows, columns = ((x.shape[2 + a] - kernel[a]) // node.stride[a] + 1 for a in (0, 1))
    c, n, h, w = x.strides
    shape = (x.shape[0], *kernel, x.shape[1], rows, columns)
    return as_strided(x, shape, (c, h, w, n, h * down, w * right), writeable=False)


FORMS: dict[Kind, Callable[..., Batch]] = {
    Kind.INPUT: lambda net, node, x: x,
    Kind.CONVOLUTION: lambda net, node, x: convolved(x, node, net.weights[node.name]),
    Kind.LINEAR: lambda net, node, x: multiplied(x, net.weights[node.name]),
    Kind.BATCH_NORM: lambda net, node, x: normed(x, net.norms[node.name]),
    Kind.RELU: lambda net, node, x: np.maximum(x, 0),
    Kind.ADD: lambda net, node, x, other: x + other,
    Kind.MAX_POOL: lambda net, node, x: max_pooled(x, node),
    Kind.MEAN_POOL: lambda net, node, x: mean_pooled(x, node),
    Kind.ADAPTIVE_POOL: lambda net, node, x: adaptively_pooled(x, node.size),
    Kind.FLATTEN: lambda net, node, x: flattened(x),
    Kind.DROPOUT: lambda net, node, x: x,
}
"""How NumPy computes each operation, outside training."""
