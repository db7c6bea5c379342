"""Effective density: the kept weights that can carry something of an image to the output."""

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Kind, Node, Pair
from fedtiny.sparse.mask import Indices, Mask

Flags = NDArray[np.bool_]
LAYERS = (Kind.CONVOLUTION, Kind.LINEAR)
WINDOWS = (Kind.CONVOLUTION, Kind.MAX_POOL, Kind.MEAN_POOL)


def effective_counts(graph: Graph, mask: Mask) -> dict[str, int]:
    """Number of kept weights by prunable layer that lie on a path from the input to the output."""
    return Paths(graph, mask).counts


def effective_density(graph: Graph, mask: Mask) -> float:
    """The share of the prunable weights that are kept and lie on such a path."""
    return Paths(graph, mask).density


class Flow:
    """The paths through one network; those of the last mask are remembered."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._last: Paths | None = None

    def under(self, mask: Mask) -> "Paths":
        """The paths that a mask leaves."""
        if self._last is None or self._last.mask != mask:
            self._last = Paths(self.graph, mask)
        return self._last


class Paths:
    """What a mask leaves of a network's paths from the input to the output.

    A channel is fed if something of the image gets into it, and heard if the output depends on it;
    a kept weight is useful if it reads a fed channel and writes a heard one. A channel that is not
    fed may still be a constant, say relu(beta) behind batch norm: what reads it is useless. So is
    what reads nothing but padding. Channels are followed, not single pixels.
    """

    def __init__(self, graph: Graph, mask: Mask) -> None:
        self.mask = mask
        self.nodes = graph.nodes
        self._sizes = plane_sizes(self.nodes)
        self._links: dict[int, _Links] = {}
        self._fed = self._follow_forward()
        self._heard = self._follow_backward()
        self._numbers = {_weight(self.nodes[i]): i for i in self._links}

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of useful weights by prunable layer."""
        return {layer: self._count(layer) for layer in self.mask}

    @property
    def density(self) -> float:
        """Useful share of the prunable weights."""
        every = self.mask.param_spec.prunable_count
        return sum(self.counts.values()) / every if every else 1.0

    @property
    def densities(self) -> dict[str, float]:
        """Useful share by layer."""
        sizes = self.mask.param_spec.sizes
        return {layer: count / sizes[layer] for layer, count in self.counts.items()}

    def useful(self, layer: str) -> Flags:
        """Which of a layer's kept weights are useful, in order of position."""
        if layer not in self._numbers:
            return np.zeros(self.mask.kept(layer), dtype=np.bool_)
        number = self._numbers[layer]
        return self._links[number].useful(self._read(number), self._heard[number])

    def _count(self, layer: str) -> int:
        if layer not in self._numbers:
            return 0
        number = self._numbers[layer]
        return self._links[number].count(self._read(number), self._heard[number])

    def _read(self, number: int) -> Flags:
        return self._fed[self.nodes[number].inputs[0]]

    def _follow_forward(self) -> list[Flags]:
        fed: list[Flags] = []
        for number, node in enumerate(self.nodes):
            if node.kind == Kind.INPUT:
                fed.append(np.ones(node.channels, dtype=np.bool_))
            elif node.kind in LAYERS:
                read = fed[node.inputs[0]]
                self._links[number] = self._links_of(node, len(read))
                fed.append(self._links[number].forward(read))
            else:
                _check_alike([fed[i].shape for i in node.inputs])
                fed.append(np.logical_or.reduce([fed[i] for i in node.inputs]))
        return fed

    def _follow_backward(self) -> list[Flags]:
        heard = [np.zeros_like(fed) for fed in self._fed]
        heard[-1][:] = True
        for number in range(len(self.nodes) - 1, 0, -1):
            given = heard[number]
            if number in self._links:
                given = self._links[number].backward(given)
            for source in self.nodes[number].inputs:
                heard[source] |= given
        return heard

    def _links_of(self, node: Node, channels: int) -> "_Links":
        taps = inside_taps(node, self._sizes[node.inputs[0]])
        layer = _weight(node)
        if layer not in self.mask.param_spec.prunable:
            return _Full(node.channels, channels, taps)
        if self.mask.param_spec.sizes[layer] != node.channels * channels * len(taps):
            raise ModelError(f"the description of '{node.name}' is not that of the mask's layer")
        if self.mask.is_full(layer):
            return _Full(node.channels, channels, taps)
        return _Sparse.of(self.mask.indices(layer), node.channels, channels, taps)


class _Links(Protocol):
    """The kept weights of one layer, as links from channels to filters."""

    def forward(self, fed: Flags) -> Flags:
        """The filters that read a fed channel."""

    def backward(self, heard: Flags) -> Flags:
        """The channels that a heard filter reads."""

    def useful(self, fed: Flags, heard: Flags) -> Flags:
        """The kept weights that read a fed channel for a heard filter."""

    def count(self, fed: Flags, heard: Flags) -> int:
        """How many these are."""


@dataclass(frozen=True, eq=False)
class _Full:
    """All weights are kept."""

    filters: int
    channels: int
    taps: Flags

    def forward(self, fed: Flags) -> Flags:
        return np.full(self.filters, fed.any() and self.taps.any())

    def backward(self, heard: Flags) -> Flags:
        return np.full(self.channels, heard.any() and self.taps.any())

    def useful(self, fed: Flags, heard: Flags) -> Flags:
        outer = np.logical_and.outer
        return outer(heard, outer(fed, self.taps)).reshape(-1)

    def count(self, fed: Flags, heard: Flags) -> int:
        return prod(int(np.count_nonzero(flags)) for flags in (fed, heard, self.taps))


@dataclass(frozen=True, eq=False)
class _Sparse:
    """Each kept weight's filter, its channel, and whether it reads more than padding."""

    filters: NDArray[np.intp]
    channels: NDArray[np.intp]
    inside: Flags
    shape: Pair

    @classmethod
    def of(cls, kept: Indices, filters: int, channels: int, taps: Flags) -> "_Sparse":
        link = kept // np.int32(len(taps))
        inside = np.ones(len(kept), np.bool_) if taps.all() else taps[kept - link * len(taps)]
        written = link // np.int32(channels)
        read = link - written * np.int32(channels)
        return cls(written.astype(np.intp), read.astype(np.intp), inside, (filters, channels))

    def forward(self, fed: Flags) -> Flags:
        found = np.zeros(self.shape[0], dtype=np.bool_)
        found[self.filters[self.inside & fed[self.channels]]] = True
        return found

    def backward(self, heard: Flags) -> Flags:
        found = np.zeros(self.shape[1], dtype=np.bool_)
        found[self.channels[self.inside & heard[self.filters]]] = True
        return found

    def useful(self, fed: Flags, heard: Flags) -> Flags:
        return self.inside & fed[self.channels] & heard[self.filters]

    def count(self, fed: Flags, heard: Flags) -> int:
        return int(np.count_nonzero(self.useful(fed, heard)))


def _weight(node: Node) -> str:
    return f"{node.name}.weight"


def _check_alike(shapes: list[tuple[int, ...]]) -> None:
    if len(set(shapes)) > 1:
        raise ModelError(f"tensors of different shapes are added: {shapes}")


def inside_taps(node: Node, size: Pair) -> Flags:
    """Of one filter's weights for one channel, those that ever read something but padding."""
    if node.kind == Kind.LINEAR:
        return np.ones(prod(size), dtype=np.bool_)
    rows, columns = (_inside(node, side, axis) for axis, side in enumerate(size))
    return np.logical_and.outer(rows, columns).reshape(-1)


def _inside(node: Node, side: int, axis: int) -> Flags:
    """Along one axis, the places in a kernel that ever lie within the image."""
    kernel, padding, step = node.kernel[axis], node.padding[axis], node.stride[axis]
    starts = np.arange(_slid(node, side, axis)) * step - padding
    read = np.add.outer(np.arange(kernel), starts)
    found: Flags = np.logical_or.reduce((read >= 0) & (read < side), axis=1)
    return found


def _slid(node: Node, side: int, axis: int) -> int:
    """How many windows fit along one axis."""
    return (side + 2 * node.padding[axis] - node.kernel[axis]) // node.stride[axis] + 1


def plane_sizes(nodes: list[Node]) -> list[Pair]:
    """Rows and columns of every node's channels; a flattened one keeps those of its source."""
    sizes: list[Pair] = []
    for node in nodes:
        if node.kind in (Kind.INPUT, Kind.ADAPTIVE_POOL):
            sizes.append(node.size)
            continue
        _check_alike([sizes[i] for i in node.inputs])
        rows, columns = sizes[node.inputs[0]]
        if node.kind in WINDOWS:
            rows, columns = _slid(node, rows, 0), _slid(node, columns, 1)
        sizes.append((1, 1) if node.kind == Kind.LINEAR else (rows, columns))
    return sizes
