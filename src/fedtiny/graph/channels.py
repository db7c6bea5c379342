"""Which channels of what a node reads get into which of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ModelError
from fedtiny.graph.node import Kind, Node, Shape

Flags = NDArray[np.bool_]
Numbers = NDArray[np.intp]
FILTERS, CHANNELS = 0, 1
MIXING = (Kind.RESHAPE, Kind.PERMUTE, Kind.LAYER_NORM)


def forward(node: Node, shape: Shape, read: Sequence[Flags], sources: Sequence[Shape]) -> Flags:
    """The channels of a node without weights that something gets into."""
    if node.kind in (Kind.INPUT, Kind.PARAMETER):
        return np.full(node.channels, node.kind == Kind.INPUT)
    if node.kind in MIXING or (node.kind == Kind.SOFTMAX and node.axis == 0):
        return np.full(shape[0], read[0].any())
    if node.kind == Kind.GROUP_NORM:
        return _by_group(read[0], node.groups)
    if node.kind in (Kind.CONCAT, Kind.SLICE) and node.axis == 0:
        alike = len({s[0] // len(f) for f, s in zip(read, sources, strict=True)}) == 1
        if node.kind == Kind.CONCAT:
            return np.concatenate(read if alike else _single(read, sources))
        return _single(read, sources)[0][node.start : node.start + node.channels]
    if len({flags.shape for flags in read}) > 1:
        raise ModelError(f"a step ({node.kind.name.lower()}) joins channels with single values")
    found: Flags = np.logical_or.reduce(read)
    return found


def backward(
    node: Node, needed: Flags, read: Sequence[Flags], sources: Sequence[Shape]
) -> list[Flags]:
    """For each thing that a node without weights reads, the channels that it needs of it."""
    if node.kind in MIXING or (node.kind == Kind.SOFTMAX and node.axis == 0):
        return [np.full(len(flags), needed.any()) for flags in read]
    if node.kind == Kind.GROUP_NORM:
        return [_by_group(needed, node.groups)]
    if node.kind == Kind.SLICE and node.axis == 0:
        single = np.zeros(sources[0][0], dtype=np.bool_)
        single[node.start : node.start + node.channels] = needed
        return [_joined(single, len(read[0]))]
    if node.kind == Kind.CONCAT and node.axis == 0:
        sizes = [len(flags) for flags in read]
        if sum(sizes) != len(needed):
            sizes = [shape[0] for shape in sources]
        parts = np.split(needed, [sizes[0]])
        return [_joined(part, len(flags)) for part, flags in zip(parts, read, strict=True)]
    return [needed] * len(read)


def _by_group(flags: Flags, groups: int) -> Flags:
    """A group is all there or not at all; of what is flat every value may belong to another."""
    if len(flags) % groups:
        return np.full(len(flags), flags.any())
    return np.repeat(flags.reshape(groups, -1).any(axis=1), len(flags) // groups)


def _single(read: Sequence[Flags], sources: Sequence[Shape]) -> list[Flags]:
    """A flag for each value of what is flat."""
    pairs = zip(read, sources, strict=True)
    return [np.repeat(flags, shape[0] // len(flags)) for flags, shape in pairs]


def _joined(single: Flags, count: int) -> Flags:
    found: Flags = single.reshape(count, -1).any(axis=1)
    return found


def ends_of(node: Node, link: NDArray[np.integer], channels: int) -> tuple[Numbers, Numbers]:
    """The filter and the channel of each link; a link is a weight's position without its tap."""
    if node.kind == Kind.TRANSPOSED_CONVOLUTION:
        own = node.channels // node.groups
        read, inner = np.divmod(link, own)
        return read // (channels // node.groups) * own + inner, read
    written, inner = np.divmod(link, channels // node.groups)
    return written, written // (node.channels // node.groups) * (channels // node.groups) + inner


@dataclass(frozen=True, eq=False)
class Links:
    """The kept weights of a layer, as links between its filters and its channels.

    `inside` has the places of a kernel that ever read more than padding and `ends` nothing where
    all weights are kept; else they have that flag, and the filter and channel, of each kept weight.
    """

    shape: tuple[int, int]
    groups: int
    inside: Flags
    ends: tuple[Numbers, Numbers] | None

    def across(self, flags: Flags, to: int) -> Flags:
        """The filters that read one of these channels, or the channels that these filters read."""
        if self.ends is None:
            found = flags.reshape(self.groups, -1).any(axis=1) & self.inside.any()
            return np.repeat(found, self.shape[to] // self.groups)
        found = np.zeros(self.shape[to], dtype=np.bool_)
        found[self.ends[to][self.inside & flags[self.ends[1 - to]]]] = True
        return found

    def useful(self, read: Flags, written: Flags) -> Flags:
        """The kept weights that read one of these channels for one of these filters."""
        if self.ends is None:
            own = read.reshape(self.groups, 1, -1, 1) & self.inside
            return (written.reshape(self.groups, -1, 1, 1) & own).reshape(-1)
        filters, channels = self.ends
        return self.inside & read[channels] & written[filters]

    def count(self, read: Flags, written: Flags) -> int:
        """How many these are."""
        if self.ends is None:
            both = [np.count_nonzero(f.reshape(self.groups, -1), axis=1) for f in (read, written)]
            return int((both[0] * both[1]).sum()) * int(np.count_nonzero(self.inside))
        return int(np.count_nonzero(self.useful(read, written)))


def links_of(node: Node, source: Shape, channels: int, kept: NDArray[np.integer] | None) -> Links:
    """The links of a layer that reads so many channels and keeps the weights at these positions."""
    taps, shape = inside_taps(node, source, channels), (node.channels, channels)
    if kept is None and node.kind == Kind.TRANSPOSED_CONVOLUTION:
        kept = np.arange(node.channels // node.groups * channels * len(taps))
    if kept is None:
        return Links(shape, node.groups, taps, None)
    link = kept // np.int32(len(taps))
    inside = np.ones(len(kept), np.bool_) if taps.all() else taps[kept - link * len(taps)]
    written, read = ends_of(node, link, channels)
    return Links(shape, node.groups, inside, (written.astype(np.intp), read.astype(np.intp)))


def inside_taps(node: Node, source: Shape, channels: int) -> Flags:
    """Of one filter's weights for one channel, those that ever read more than padding.

    A linear layer reads every value of each channel; a transposed convolution reads no padding.
    """
    if node.kind == Kind.LINEAR:
        return np.ones(source[0] // channels, dtype=np.bool_)
    if node.kind == Kind.TRANSPOSED_CONVOLUTION:
        return np.ones(prod(node.kernel), dtype=np.bool_)
    rows, columns = (_inside_axis(node, side, axis) for axis, side in enumerate(source[1:]))
    return np.logical_and.outer(rows, columns).reshape(-1)


def _inside_axis(node: Node, side: int, axis: int) -> Flags:
    """Along one axis, the places in a kernel that ever lie within the image."""
    padding, step, apart = node.padding[axis], node.stride[axis], node.dilation[axis]
    count = (side + padding + node.ends[axis] - node.span[axis]) // step + 1
    read = np.add.outer(np.arange(node.kernel[axis]) * apart, np.arange(count) * step - padding)
    found: Flags = np.logical_or.reduce((read >= 0) & (read < side), axis=1)
    return found
