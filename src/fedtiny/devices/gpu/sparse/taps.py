"""A mask as the kernels read it: for each kept weight, where in a tile it reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.devices.gpu.sparse.tiles import WORD, Reach, Tile
from fedtiny.graph.ir import Node, Pair

Integers = NDArray[np.int64]
CHUNK = 32  # taps of an item if only weights' gradients are wanted: then channels may be cut


def forward_reach(
    nodes: Sequence[Node], channels: int, source: Pair, out: Pair, images: int
) -> Reach:
    """Where the outputs of some convolutions read."""
    low = [min(-n.padding[i] for n in nodes) for i in (0, 1)]
    high = [max(n.kernel[i] - 1 - n.padding[i] for n in nodes) for i in (0, 1)]
    step, ends = nodes[0].stride[0], (high[0], high[1])
    return Reach(channels, source, out, step, (low[0], low[1]), ends, images)


def backward_reach(
    nodes: Sequence[Node], filters: int, source: Pair, out: Pair, images: int
) -> Reach:
    """Where their inputs read in the gradient of the outputs."""
    step = nodes[0].stride[0]
    grid = -(-source[0] // step), -(-source[1] // step)
    read = [np.concatenate([_rows(n, i, np.arange(n.kernel[i]))[1] for n in nodes]) for i in (0, 1)]
    low, high = ([int(end(rows)) for rows in read] for end in (np.min, np.max))
    ends = (high[0], high[1])
    return Reach(filters, out, grid, 1, (low[0], low[1]), ends, images)


def _rows(node: Node, axis: int, at: Integers) -> tuple[Integers, Integers]:
    """Of weights at these places of a kernel: the class of positions, and what these read."""
    behind = at - node.padding[axis]
    kind = behind % node.stride[axis]
    return kind, (kind - behind) // node.stride[axis]


@dataclass(frozen=True)
class Taps:
    """The kept weights of some convolutions that are one step, in both orders."""

    offsets: NDArray[np.int32]
    work: NDArray[np.int32]
    back_offsets: NDArray[np.int32]
    back_work: NDArray[np.int32]
    place: NDArray[np.int32]
    """By tap of the backward pass, the tap of the forward pass."""


def make_taps(
    nodes: Sequence[Node],
    channels: int,
    kept: Sequence[NDArray[np.int32]],
    tiles: tuple[Tile, Tile],
    slots: tuple[int, int],
    *,
    cut: bool,
) -> Taps:
    """The taps of each node's kept positions (flat, sorted); `slots` are warps that share the work.

    With `cut` the backward pass gives no input gradient, so its work may be cut anywhere.
    """
    step, filters, parts = nodes[0].stride[0], 0, []
    for node, positions in zip(nodes, kept, strict=True):
        link, inside = np.divmod(positions.astype(np.int64), node.kernel[0] * node.kernel[1])
        written, read = np.divmod(link, channels)
        y, x = np.divmod(inside, node.kernel[1])
        (dy, back_y), (dx, back_x) = _rows(node, 0, y), _rows(node, 1, x)
        forth = (written + filters, read, y - node.padding[0], x - node.padding[1])
        parts.append(np.stack([*forth, dy * step + dx, back_y, back_x]))
        filters += node.channels
    written, read, y, x, kind, back_y, back_x = np.concatenate(parts, axis=1)
    classes = step * step
    order = np.argsort(read * classes + kind, kind="stable")
    there, back = tiles
    return Taps(
        _bytes(there.offset(read, y, x)),
        _work(written, filters, 1, slots[0]),
        _bytes(back.offset(written, back_y, back_x))[order],
        _work((read * classes + kind)[order], channels * classes, classes, slots[1], cut=cut),
        order.astype(np.int32),
    )


def _bytes(offsets: Any) -> NDArray[np.int32]:
    return np.asarray(offsets * WORD, dtype=np.int32)


def _work(
    keys: Integers, count: int, classes: int, slots: int, *, cut: bool = False
) -> NDArray[np.int32]:
    """An item for each key: its taps, channel and class; dealt so that no warp has much more."""
    every = np.arange(count)
    ends = np.searchsorted(keys, every, side="right")
    starts = np.searchsorted(keys, every, side="left")
    if cut:
        chunks = np.maximum(1, -(-(ends - starts) // CHUNK))
        piece = np.arange(chunks.sum()) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        every, ends = np.repeat(every, chunks), np.repeat(ends, chunks)
        starts = np.repeat(starts, chunks) + piece * CHUNK
        ends = np.minimum(ends, starts + CHUNK)
    items = np.stack([starts, ends, every // classes, every % classes], axis=1)
    items = items[np.argsort(starts - ends, kind="stable")]
    for first in range(slots, len(items), 2 * slots):  # there and back again
        items[first : first + slots] = items[first : first + slots][::-1].copy()
    return items.astype(np.int32)


def max_items(channels: int, step: int, room: int) -> int:
    """Items of a backward pass whose work is cut, at most."""
    return channels * step * step + -(-room // CHUNK)
