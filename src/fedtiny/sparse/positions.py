"""Positions of pruned weights that a seed names, the same wherever they are drawn."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtiny.randomness import generator
from fedtiny.sparse.mask import Indices, Mask


def random_pruned(
    mask: Mask, counts: Mapping[str, int], *, seed: int, round: int, purpose: str
) -> dict[str, Indices]:
    """So many pruned positions of each layer, sorted: every one is as likely as any other.

    Memory follows the positions and the kept weights, never the size of a layer.
    """
    draw = generator(seed, purpose, round=round)
    return {layer: _random_pruned(mask, layer, n, draw) for layer, n in counts.items()}


def _random_pruned(mask: Mask, layer: str, count: int, draw: np.random.Generator) -> Indices:
    pruned = mask.param_spec.sizes[layer] - mask.kept(layer)
    count = min(count, pruned)
    if 2 * count > pruned:  # so many that a list of all pruned ones is as short
        ranks = np.sort(draw.permutation(pruned)[:count])
    else:
        ranks = _distinct(pruned, count, draw)
    kept = mask.indices(layer)
    before = np.searchsorted(kept - np.arange(len(kept)), ranks, side="right")
    return (ranks + before).astype(np.int32)


def _distinct(below: int, count: int, draw: np.random.Generator) -> NDArray[np.int64]:
    """Sorted whole numbers below a bound, no two the same; at most half of them."""
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        found = np.union1d(found, draw.integers(0, below, size=count - len(found)))
    return found
