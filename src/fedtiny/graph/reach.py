"""What kept weights leave of the ways from the image to the output."""

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ModelError
from fedtiny.graph.channels import (
    CHANNELS,
    FILTERS,
    Flags,
    Links,
    backward,
    forward,
    inside_taps,
    links_of,
)
from fedtiny.graph.ir import Graph

Positions = NDArray[np.integer[Any]]


class Reachability:
    """The channels that something of the image reaches, and those that reach the output.

    A channel is reached from the input if something of the image gets into it, and reaches the
    output if the output depends on it. One that is not reached from the input may still be a
    constant, say relu(beta) behind batch norm. What reads nothing but padding reads nothing.
    Channels are followed, not single pixels; what is flat has the channels that it was made of.
    A weight of a layer that runs twice is useful if it is in one of its runs.

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
        self._links: dict[int, Links] = {}
        self._runs: dict[str, list[int]] = {}
        for number, node in graph.layers.items():
            self._runs.setdefault(f"{node.name}.weight", []).append(number)

    @cached_property
    def from_input(self) -> list[Flags]:
        """By node, the channels that something of the image gets into."""
        found: list[Flags] = []
        for number, (node, shapes) in enumerate(self.graph.read):
            read = [found[i] for i in node.inputs]
            if number in self.graph.layers:
                self._links[number] = self._links_of(number, len(read[0]))
                found.append(self._links[number].across(read[0], to=FILTERS))
            else:
                found.append(forward(node, self.graph.shapes[number], read, shapes))
        return found

    @cached_property
    def to_output(self) -> list[Flags]:
        """By node, the channels that the output depends on."""
        found = [np.zeros_like(flags) for flags in self.from_input]
        found[-1][:] = True
        for number in range(len(found) - 1, 0, -1):
            node, shapes = self.graph.read[number]
            if number in self._links:
                needed = [self._links[number].across(found[number], to=CHANNELS)]
            else:
                needed = backward(node, found[number], [found[i] for i in node.inputs], shapes)
            for source, flags in zip(node.inputs, needed, strict=True):
                found[source] |= flags
        return found

    def useful(self, layer: str) -> Flags:
        """Which kept weights of a layer carry something of the image to the output, in order."""
        if layer in self._runs:
            ends = {number: self._ends(number) for number in self._runs[layer]}
            runs = [self._links[number].useful(*both) for number, both in ends.items()]
            return runs[0] if len(runs) == 1 else np.logical_or.reduce(runs)
        positions = self._kept.get(layer)
        count = self.sizes[layer] if positions is None else len(positions)
        return np.zeros(count, dtype=np.bool_)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of useful weights by layer; of one that is not in the graph, none."""
        return {layer: self._count(layer) for layer in self.sizes}

    def _count(self, layer: str) -> int:
        runs = self._runs.get(layer, [])
        if len(runs) == 1:
            ends = self._ends(runs[0])
            return self._links[runs[0]].count(*ends)
        return int(np.count_nonzero(self.useful(layer)))

    @property
    def density(self) -> float:
        """Useful share of all weights."""
        every = sum(self.sizes.values())
        return sum(self.counts.values()) / every if every else 1.0

    @property
    def densities(self) -> dict[str, float]:
        """Useful share by layer."""
        return {layer: count / self.sizes[layer] for layer, count in self.counts.items()}

    def _ends(self, number: int) -> tuple[Flags, Flags]:
        """What a layer's channels and filters are worth."""
        (source,) = self.graph.nodes[number].inputs
        return self.from_input[source], self.to_output[number]

    def inside(self, number: int) -> Flags:
        """Of one filter's weights for one channel, those that ever read more than padding."""
        (source,) = self.graph.nodes[number].inputs
        channels = len(self.from_input[source])
        return inside_taps(self.graph.nodes[number], self.graph.shapes[source], channels)

    def _links_of(self, number: int, channels: int) -> Links:
        node, (source,) = self.graph.read[number]
        layer = f"{node.name}.weight"
        size = prod(self.graph.weight_shapes[node.name])
        if self.sizes.get(layer, size) != size:
            raise ModelError(f"the graph's '{node.name}' is not that of the mask's layer")
        return links_of(node, source, channels, self._kept.get(layer))
