"""Growing and dropping (Alg. 2, lines 22 to 25)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import largest, smallest
from fedtiny.sparse.vector import SparseVector


@dataclass(frozen=True, eq=False)
class Change:
    """The positions of a layer that were grown and dropped; disjoint."""

    grown: NDArray[np.int32]
    dropped: NDArray[np.int32]

    def __len__(self) -> int:
        return max(len(self.grown), len(self.dropped))


Changes = dict[str, Change]
Useful = Callable[[str], NDArray[np.bool_]]


def mask_changes(before: Mask, after: Mask) -> Changes:
    """What differs between two masks, by layer; layers that are the same are left out."""
    changes: Changes = {}
    if before == after:
        return changes
    for layer in before:
        old, new = before.indices(layer), after.indices(layer)
        change = Change(
            np.setdiff1d(new, old, assume_unique=True), np.setdiff1d(old, new, assume_unique=True)
        )
        if len(change):
            changes[layer] = change
    return changes


def grow_and_drop(
    theta: Theta,
    gradients: Mapping[str, SparseVector],
    numbers: Mapping[str, int],
    useful: Useful | None = None,
) -> tuple[Theta, Changes]:
    """Swap up to a_t^l weights in each layer named; the density of every layer stays.

    Grown are the pruned weights of largest averaged gradient, never one whose gradient is zero;
    dropped are as many of the old kept weights, those of smallest magnitude. If it is known which
    of a layer's kept weights are useful, the others go first.
    """
    changes = {
        layer: _change(theta, layer, gradients[layer], number, useful)
        for layer, number in numbers.items()
        if layer in gradients
    }
    kept = {
        layer: np.union1d(np.setdiff1d(theta.mask.indices(layer), change.dropped), change.grown)
        for layer, change in changes.items()
    }
    return theta.remasked(theta.mask.replace(kept)), changes


def _change(
    theta: Theta, layer: str, gradient: SparseVector, number: int, useful: Useful | None
) -> Change:
    kept = theta.mask.indices(layer)
    growable = ~np.isin(gradient.indices, kept) & (gradient.values != 0)
    candidates = gradient.indices[growable]
    grown = candidates[largest(gradient.values[growable], min(number, len(kept)))]
    first = np.zeros(len(kept), dtype=np.bool_) if useful is None else ~useful(layer)
    dropped = kept[_least(theta.kept(layer), first, len(grown))]
    return Change(grown, dropped)


def _least(values: NDArray[np.float32], first: NDArray[np.bool_], count: int) -> NDArray[np.intp]:
    """Sorted places of the smallest magnitudes, but those marked come first.

    >>> _least(np.array([4, 3, 2, 1], "f4"), np.array([True, True, False, False]), 3)
    array([0, 1, 3])
    """
    marked, others = np.flatnonzero(first), np.flatnonzero(~first)
    chosen = marked[smallest(values[marked], count)]
    rest = others[smallest(values[others], count - len(chosen))]
    return np.sort(np.concatenate([chosen, rest]))
