"""Growing and dropping (Alg. 2, lines 22 to 25)."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtiny.sparse.magnitude import largest, smallest
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector


@dataclass(frozen=True, eq=False)
class Change:
    """The positions of a layer that were grown and dropped; disjoint."""

    grown: NDArray[np.int32]
    dropped: NDArray[np.int32]

    def __len__(self) -> int:
        return max(len(self.grown), len(self.dropped))


Changes = dict[str, Change]


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
    theta: Theta, gradients: Mapping[str, SparseVector], numbers: Mapping[str, int]
) -> tuple[Theta, Changes]:
    """Swap up to a_t^l weights in each layer named; the density of every layer stays.

    Grown are the pruned weights of largest averaged gradient, never one whose gradient is zero;
    dropped are as many of the old kept weights, those of smallest magnitude.
    """
    changes = {
        layer: _change(theta, layer, gradients[layer], number)
        for layer, number in numbers.items()
        if layer in gradients
    }
    kept = {
        layer: np.union1d(np.setdiff1d(theta.mask.indices(layer), change.dropped), change.grown)
        for layer, change in changes.items()
    }
    return theta.remasked(theta.mask.replace(kept)), changes


def _change(theta: Theta, layer: str, gradient: SparseVector, number: int) -> Change:
    kept = theta.mask.indices(layer)
    growable = ~np.isin(gradient.indices, kept) & (gradient.values != 0)
    candidates = gradient.indices[growable]
    grown = candidates[largest(gradient.values[growable], min(number, len(kept)))]
    dropped = kept[smallest(theta.kept(layer), len(grown))]
    return Change(grown, dropped)
