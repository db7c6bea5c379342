"""A graph with the arrays of its layers, kept weights only, and what it computes in NumPy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Kind, Node, Pair

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Weights:
    """The kept weights of a convolution or linear layer.

    `shape` is (filters, channels, rows, columns) or (neurons, inputs); `indices` are the sorted
    flat positions of the kept weights, or None where all are kept.
    """

    shape: tuple[int, ...]
    indices: NDArray[np.int64] | None
    values: Floats
    bias: Floats | None

    @property
    def size(self) -> int:
        """Number of places for weights."""
        return prod(self.shape)

    @property
    def filters(self) -> NDArray[np.int64]:
        """The filter of each kept weight."""
        return self.positions // max(1, self.size // self.shape[0])

    @property
    def positions(self) -> NDArray[np.int64]:
        """The flat position of each kept weight."""
        return np.arange(self.size) if self.indices is None else self.indices

    def dense(self) -> Floats:
        """The weights in their full shape, with zeros where none is kept."""
        if self.indices is None:
            return self.values.reshape(self.shape)
        flat = np.zeros(self.size, dtype=self.values.dtype)
        flat[self.indices] = self.values
        return flat.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Norm:
    """A batch norm that stays a step of its own, with its running statistics."""

    gamma: Floats
    beta: Floats
    mean: Floats
    variance: Floats
    epsilon: float = field(kw_only=True)

    @property
    def parts(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Its four arrays."""
        return self.gamma, self.beta, self.mean, self.variance

    def scale_and_shift(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What each channel is multiplied by and what is added then, in float64."""
        scale = self.gamma / np.sqrt(self.variance.astype(np.float64) + self.epsilon)
        return scale, self.beta - self.mean * scale


@dataclass(frozen=True, eq=False)
class Lowered:
    """A graph and the arrays of those nodes that have some, by the node's name."""

    graph: Graph
    weights: Mapping[str, Weights]
    norms: Mapping[str, Norm]

    def check_values(self) -> None:
        """Refuse numbers that nothing can be computed with."""
        for name, weights in self.weights.items():
            arrays = (weights.values, weights.bias)
            if not all(np.isfinite(array).all() for array in arrays if array is not None):
                raise ModelError(f"weights of {name!r:.60} are NaN or infinite")
        for name, norm in self.norms.items():
            finite = all(np.isfinite(part).all() for part in norm.parts)
            if not finite or (norm.variance < 0).any():
                raise ModelError(f"statistics of {name!r:.60} are NaN, infinite or below 0")
            if not (isfinite(norm.epsilon) and norm.epsilon > 0):
                raise ModelError(f"{name!r:.60} needs an epsilon above 0")


Batch = NDArray[Any]
DENSE_FROM = 0.03  # kept share of a layer from which one dense product is faster
SMALL_RUN = 500  # values of a filter below which a call of its own costs more than it saves
MAX_GATHERED = 1 << 21  # values that are gathered at a time


def all_steps(net: Lowered, batch: Batch) -> list[Batch]:
    """What every node gives for a batch."""
    outputs: list[Batch] = []
    for node in net.graph.nodes:
        outputs.append(FORMS[node.kind](net, node, *([outputs[i] for i in node.inputs] or [batch])))
    return outputs


def convolved(x: Batch, node: Node, weights: Weights) -> Batch:
    """Cross-correlation, dense or by kept weight, whichever is faster.

    A linear layer is one with a kernel of one pixel over something flat.
    """
    windows = _windows(x, node)
    shape = windows.shape[3:]
    if len(weights.values) >= DENSE_FROM * weights.size:
        rows = windows.reshape(weights.size // weights.shape[0], prod(shape))
        out = weights.dense().reshape(weights.shape[0], -1).astype(x.dtype, copy=False) @ rows
        return _biased(out.reshape(weights.shape[0], *shape), weights)
    _, channel, row, column = np.unravel_index(weights.positions, (*weights.shape, 1, 1)[:4])
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
        x += _by_channel(weights.bias, x)
    return x


def normed(x: Batch, norm: Norm) -> Batch:
    """Batch norm with running statistics."""
    scale, shift = norm.scale_and_shift()
    return x * _by_channel(scale, x) + _by_channel(shift, x)


def _by_channel(values: NDArray[Any], like: Batch) -> Batch:
    return values.astype(like.dtype, copy=False).reshape(-1, 1, 1, 1)


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
    Kind.LINEAR: lambda net, node, x: convolved(x, node, net.weights[node.name]),
    Kind.BATCH_NORM: lambda net, node, x: normed(x, net.norms[node.name]),
    Kind.RELU: lambda net, node, x: np.maximum(x, 0),
    Kind.ADD: lambda net, node, x, other: x + other,
    Kind.MAX_POOL: lambda net, node, x: _windows(x, node, -np.inf).max(axis=(1, 2)),
    Kind.MEAN_POOL: lambda net, node, x: mean_pooled(x, node),
    Kind.ADAPTIVE_POOL: lambda net, node, x: adaptively_pooled(x, node.size),
    Kind.FLATTEN: lambda net, node, x: flattened(x),
    Kind.DROPOUT: lambda net, node, x: x,
}
"""How NumPy computes each operation, outside training."""
