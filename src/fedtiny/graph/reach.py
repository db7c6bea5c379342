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
FILTERS, CHANNELS = 0, 1


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
        self.graph, self._kept = graph, kept
        self.sizes = sizes or {f"{n}.weight": prod(s) for n, s in graph.weight_shapes.items()}
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
                found.append(self._links[number].across(sources[0], to=FILTERS))
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
                read = self._links[number].across(read, to=CHANNELS)
            for source in self.graph.nodes[number].inputs:
                found[source] |= read
        return found

    def useful(self, layer: str) -> Flags:
        """Which kept weights of a layer carry something of the image to the output, in order."""
        if layer in self._numbers:
            read, written = self._ends(layer)
            return self._links[self._numbers[layer]].useful(read, written)
        positions = self._kept.get(layer)
        count = self.sizes[layer] if positions is None else len(positions)
        return np.zeros(count, dtype=np.bool_)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of useful weights by layer; of one that is not in the graph, none."""
        ends = {layer: self._ends(layer) for layer in self.sizes if layer in self._numbers}
        found = {n: self._links[self._numbers[n]].count(*both) for n, both in ends.items()}
        return dict.fromkeys(self.sizes, 0) | found

    @property
    def density(self) -> float:
        """Useful share of all weights."""
        every = sum(self.sizes.values())
        return sum(self.counts.values()) / every if every else 1.0

    @property
    def densities(self) -> dict[str, float]:
        """Useful share by layer."""
        return {layer: count / self.sizes[layer] for layer, count in self.counts.items()}

    def _ends(self, layer: str) -> tuple[Flags, Flags]:
        """What a layer's channels and filters are worth."""
        number = self._numbers[layer]
        (source,) = self.graph.nodes[number].inputs
        return self.from_input[source], self.to_output[number]

    def inside(self, number: int) -> Flags:
        """Of one filter's weights for one channel, those that ever read more than padding."""
        (source,) = self.graph.nodes[number].inputs
        channels = len(self.from_input[source])
        return _inside_taps(self.graph.nodes[number], self.graph.shapes[source], channels)

    def _links_of(self, node: Node, channels: int) -> "_Links":
        taps = _inside_taps(node, self.graph.shapes[node.inputs[0]], channels)
        layer, size = f"{node.name}.weight", node.channels * channels * len(taps)
        if self.sizes.get(layer, size) != size:
            raise ModelError(f"the graph's '{node.name}' is not that of the mask's layer")
        shape, kept = (node.channels, channels), self._kept.get(layer)
        if kept is None:
            return _Links(shape, taps, None)
        link = kept // np.int32(len(taps))
        inside = np.ones(len(kept), np.bool_) if taps.all() else taps[kept - link * len(taps)]
        written = link // np.int32(channels)
        read = link - written * np.int32(channels)
        return _Links(shape, inside, (written.astype(np.intp), read.astype(np.intp)))


@dataclass(frozen=True, eq=False)
class _Links:
    """The kept weights of a layer, as links between its filters and its channels.

    `inside` has the places of a kernel that ever read more than padding and `ends` nothing where
    all weights are kept; else they have that flag, and the filter and channel, of each kept weight.
    """

    shape: tuple[int, int]
    inside: Flags
    ends: tuple[NDArray[np.intp], NDArray[np.intp]] | None

    def across(self, flags: Flags, to: int) -> Flags:
        """The filters that read one of these channels, or the channels that these filters read."""
        if self.ends is None:
            return np.full(self.shape[to], flags.any() and self.inside.any())
        found = np.zeros(self.shape[to], dtype=np.bool_)
        found[self.ends[to][self.inside & flags[self.ends[1 - to]]]] = True
        return found

    def useful(self, read: Flags, written: Flags) -> Flags:
        """The kept weights that read one of these channels for one of these filters."""
        if self.ends is None:
            outer = np.logical_and.outer
            return outer(written, outer(read, self.inside)).reshape(-1)
        filters, channels = self.ends
        return self.inside & read[channels] & written[filters]

    def count(self, read: Flags, written: Flags) -> int:
        """How many these are."""
        if self.ends is None:
            return prod(int(np.count_nonzero(f)) for f in (read, written, self.inside))
        return int(np.count_nonzero(self.useful(read, written)))


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
