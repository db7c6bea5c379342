"""Which way weights went, in two bits each, and a swap that heeds it (FedSGC)."""

from collections.abc import Mapping
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.sparse.adjust import Change, changed, least
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import largest, smallest
from fedtiny.sparse.vector import SparseVector

Arrays = Mapping[str, NDArray[Any]]
Signs = Mapping[str, SparseVector]
"""By layer, -1 or 1 at positions whose weights moved."""

OF_KEPT, OF_DROPPED = "direction.kept", "direction.dropped"


def packed_directions(before: Theta, after: Theta) -> dict[str, NDArray[Any]]:
    """The sign of after - before, as it travels: two bits a weight that is kept after.

    A weight that was dropped has gone to zero: its position in all layers laid end to end, counted
    from 1, with the sign of that way.
    """
    kept = after.mask.count
    moved = after.vector[:kept] - before.remasked(after.mask).vector[:kept]
    dropped, start = [np.empty(0, dtype=np.int32)], 1
    for layer, size in after.param_spec.sizes.items():
        gone = ~np.isin(before.mask.indices(layer), after.mask.indices(layer))
        signs = -np.sign(before.kept(layer)[gone]).astype(np.int32)
        dropped.append(signs * (before.mask.indices(layer)[gone] + start))
        start += size
    positions = np.concatenate(dropped)
    bits = np.stack([moved > 0, moved < 0], axis=1)
    return {OF_KEPT: np.packbits(bits), OF_DROPPED: positions[positions != 0]}


def no_directions(mask: Mask) -> dict[str, NDArray[Any]]:
    """What travels before any weight has moved."""
    return {
        OF_KEPT: np.zeros((2 * mask.count + 7) // 8, dtype=np.uint8),
        OF_DROPPED: np.empty(0, dtype=np.int32),
    }


def directions_of_kept(arrays: Arrays, mask: Mask) -> dict[str, NDArray[np.int8]]:
    """By layer, the sign of each kept weight's way."""
    bits = np.unpackbits(arrays[OF_KEPT], count=2 * mask.count).reshape(-1, 2).astype(np.int8)
    ends = np.cumsum(list(mask.counts.values()))
    return dict(zip(mask, np.split(bits[:, 0] - bits[:, 1], ends[:-1]), strict=True))


def directions_of_dropped(arrays: Arrays, mask: Mask) -> dict[str, SparseVector]:
    """By layer, the signs of the ways of weights that are pruned now."""
    coded, found, start = arrays[OF_DROPPED], {}, 1
    for layer, size in mask.param_spec.sizes.items():
        own = coded[(np.abs(coded) >= start) & (np.abs(coded) < start + size)]
        positions = (np.abs(own) - start).astype(np.int32)
        found[layer] = SparseVector(size, positions, np.sign(own).astype(np.float32))
        start += size
    return found


def congruent_swap(
    theta: Theta,
    sent: Theta,
    arrays: Arrays,
    gradients: Mapping[str, SparseVector],
    of_dropped: Mapping[str, NDArray[np.float32]],
    numbers: Mapping[str, int],
    share: float,
) -> Theta:
    """Swap so many weights in each layer, those first that go with the global model or against it.

    Up to this share of a layer's number are weights that moved against the global model since they
    were `sent`, the smallest; the others are the smallest of all. Up to the same share of the grown
    ones would move with it, those of largest gradient; the others have the largest of all. A pruned
    weight has a direction if it was dropped just before; `of_dropped` are the gradients of these.
    """
    ways, dropped_ways = (
        directions_of_kept(arrays, theta.mask),
        directions_of_dropped(arrays, theta.mask),
    )
    changes = {}
    for layer, number in numbers.items():
        first, kept = floor(share * number + 1e-9), theta.mask.indices(layer)
        grown = _grown(
            gradients[layer],
            dropped_ways[layer],
            of_dropped.get(layer),
            min(number, len(kept)),
            first,
        )
        values = theta.kept(layer)
        against = np.flatnonzero(ways[layer] * np.sign(values - sent.kept(layer)) < 0)
        marked = np.zeros(len(kept), dtype=np.bool_)
        marked[against[smallest(values[against], first)]] = True
        changes[layer] = Change(grown, kept[least(values, marked, len(grown))])
    return changed(theta, changes)


def _grown(
    largest_of_all: SparseVector,
    ways: SparseVector,
    gradients: NDArray[np.float32] | None,
    number: int,
    first: int,
) -> NDArray[np.int32]:
    """Positions to grow; a weight whose gradient is zero never is."""
    preferred = np.empty(0, dtype=np.int32)
    if gradients is not None:
        along = np.flatnonzero(ways.values * -np.sign(gradients) > 0)
        preferred = ways.indices[along[largest(gradients[along], min(first, number))]]
    others = ~np.isin(largest_of_all.indices, preferred) & (largest_of_all.values != 0)
    rest = largest(largest_of_all.values[others], number - len(preferred))
    return np.union1d(preferred, largest_of_all.indices[others][rest]).astype(np.int32)
