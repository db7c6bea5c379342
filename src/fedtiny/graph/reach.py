"""What kept weights leave of the ways from the image to the output."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph, Kind, Node, Shape

Flags = NDArray[np.bool_]
Positions = NDArray[np.integer[Any]]


class Reachability:
    """The channels that something of the image reaches, and those that reach the output.

    A channel is reached from the input if something of the image gets into it, and reaches the
    output if the output depends on it. One that is not reached from the input may still be a
    constant, say relu(beta) behind batch norm. What reads nothing but padding reads nothing.
    Channels are followed, not single pixels; what is flat has the channels that it was made of.

    `kept` has the sorted positions of the kept weights by the names of the weights; None, or a
    layer that is not named, keeps all. `sizes` are those of the layers that are asked about.
    """

    def __init__(
        self,
        graph: Graph,
        kept: Mapping[str, Positions | None],
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.graph = graph
        self.sizes = sizes or {f"{n}.weight": prod(s) for n, s in graph.weight_shapes.items()}
        self._kept = kept
        self._links: dict[int, _Links] = {}
        self._numbers = {f"{node.name}.weight": i for i, node in graph.layers.items()}

    @cached_property
    def from_input(self) -> list[Flags]:
        """By node, the channels that something of the image gets into."""
        found: list[Flags] = []
        for number, node in enumerate(self.graph.nodes):
            sources = [found[i] for i in node.inputs]
            if node.kind == Kind.INPUT:
                found.append(np.ones(node.channels, dtype=np.bool_))
            elif number in self.graph.layers:
                self._links[number] = self._links_of(node, len(sources[0]))
                found.append(self._links[number].forward(sources[0]))
            elif len({flags.shape for flags in sources}) > 1:
                raise ModelError(f"step {number} adds channels to single values")
            else:
                found.append(np.logical_or.reduce(sources))
        return found

    @cached_property
    def to_output(self) -> list[Flags]:
        """By node, the channels that the output depends on."""
        found = [np.zeros_like(flags) for flags in self.from_input]
        found[-1][:] = True
        for number in range(len(found) - 1, 0, -1):
            read = found[number]
            if number in self._links:
                read = self._links[number].backward(read)
            for source in self.graph.nodes[number].inputs:
                found[source] |= read
        return found

    def useful(self, layer: str, *, constants: bool = False) -> Flags:
        """Which kept weights of a layer carry something of the image to the output, in order.

        With `constants` those stay, too, that carry a constant there.
        """
        if layer not in self._numbers:
            return np.zeros(self._kept_count(layer), dtype=np.bool_)
        read, written = self._ends(layer)
        read = np.ones_like(read) if constants else read
        return self._links[self._numbers[layer]].useful(read, written)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of useful weights by layer."""
        return {layer: self._count(layer) for layer in self.sizes}

    @property
    def density(self) -> float:
        """Useful share of all weights."""
        every = sum(self.sizes.values())
        return sum(self.counts.values()) / every if every else 1.0

    @property
    def densities(self) -> dict[str, float]:
        """Useful share by layer."""
        return {layer: count / self.sizes[layer] for layer, count in self.counts.items()}

    def inside(self, number: int) -> Flags:
        """Of one filter's weights for one channel, those that ever read more than padding."""
        node = self.graph.nodes[number]
        (source,) = node.inputs
        return _inside_taps(node, self.graph.shapes[source], len(self.from_input[source]))

    def _ends(self, layer: str) -> tuple[Flags, Flags]:
        """What a layer's channels and filters are worth."""
        number = self._numbers[layer]
        (source,) = self.graph.nodes[number].inputs
        return self.from_input[source], self.to_output[number]

    def _count(self, layer: str) -> int:
        if layer not in self._numbers:
            return 0
        read, written = self._ends(layer)
        return self._links[self._numbers[layer]].count(read, written)

    def _kept_count(self, layer: str) -> int:
        positions = self._kept.get(layer)
        return self.sizes[layer] if positions is None else len(positions)

    def _links_of(self, node: Node, channels: int) -> "_Links":
        taps = _inside_taps(node, self.graph.shapes[node.inputs[0]], channels)
        layer, size = f"{node.name}.weight", node.channels * channels * len(taps)
        if self.sizes.get(layer, size) != size:
            raise ModelError(f"the graph's '{node.name}' is not that of the mask's layer")
        positions = self._kept.get(layer)
        if positions is None:
            return _Full(node.channels, channels, taps)
        return _Sparse.of(positions, node.channels, channels, taps)


@dataclass(frozen=True, eq=False)
class _Full:
    """A layer that keeps all its weights, as links from channels to filters."""

    filters: int
    channels: int
    taps: Flags

    def forward(self, read: Flags) -> Flags:
        """The filters that read one of these channels."""
        return np.full(self.filters, read.any() and self.taps.any())

    def backward(self, written: Flags) -> Flags:
        """The channels that one of these filters reads."""
        return np.full(self.channels, written.any() and self.taps.any())

    def useful(self, read: Flags, written: Flags) -> Flags:
        """The kept weights that read one of these channels for one of these filters."""
        outer = np.logical_and.outer
        return outer(written, outer(read, self.taps)).reshape(-1)

    def count(self, read: Flags, written: Flags) -> int:
        """How many these are."""
        return prod(int(np.count_nonzero(flags)) for flags in (read, written, self.taps))


@dataclass(frozen=True, eq=False)
class _Sparse:
    """Each kept weight's filter, its channel, and whether it reads more than padding."""

    filters: NDArray[np.intp]
    channels: NDArray[np.intp]
    inside: Flags
    shape: tuple[int, int]

    @classmethod
    def of(cls, kept: Positions, filters: int, channels: int, taps: Flags) -> "_Sparse":
        link = kept // np.int32(len(taps))
        inside = np.ones(len(kept), np.bool_) if taps.all() else taps[kept - link * len(taps)]
        written = link // np.int32(channels)
        read = link - written * np.int32(channels)
        return cls(written.astype(np.intp), read.astype(np.intp), inside, (filters, channels))

    def forward(self, read: Flags) -> Flags:
        found = np.zeros(self.shape[0], dtype=np.bool_)
        found[self.filters[self.inside & read[self.channels]]] = True
        return found

    def backward(self, written: Flags) -> Flags:
        found = np.zeros(self.shape[1], dtype=np.bool_)
        found[self.channels[self.inside & written[self.filters]]] = True
        return found

    def useful(self, read: Flags, written: Flags) -> Flags:
        return self.inside & read[self.channels] & written[self.filters]

    def count(self, read: Flags, written: Flags) -> int:
        return int(np.count_nonzero(self.useful(read, written)))


_Links = _Full | _Sparse


def _inside_taps(node: Node, source: Shape, channels: int) -> Flags:
    """See `Reachability.inside`; a linear layer reads every value of each channel."""
    if node.kind == Kind.LINEAR:
        return np.ones(prod(source) // channels, dtype=np.bool_)
    rows, columns = (_inside_axis(node, side, axis) for axis, side in enumerate(source[1:]))
    return np.logical_and.outer(rows, columns).reshape(-1)


def _inside_axis(node: Node, side: int, axis: int) -> Flags:
    """Along one axis, the places in a kernel that ever lie within the image."""
    kernel, padding, step = node.kernel[axis], node.padding[axis], node.stride[axis]
    starts = np.arange((side + 2 * padding - kernel) // step + 1) * step - padding
    read = np.add.outer(np.arange(kernel), starts)
    found: Flags = np.logical_or.reduce((read >= 0) & (read < side), axis=1)
    return found
