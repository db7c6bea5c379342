"""Growing and dropping (Alg. 2, lines 22 to 25)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
Positions = dict[str, NDArray[np.int32]]


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
    scores: Mapping[str, SparseVector],
    numbers: Mapping[str, int],
    useful: Useful | None = None,
    *,
    room: Mapping[str, int] | None = None,
    together: bool = False,
) -> tuple[Theta, Changes]:
    """Swap up to a_t^l weights in each layer named; the density of every layer stays.

    Grown are the pruned weights of largest score (the averaged gradient, say), never one whose
    score is zero; dropped are as many of the old kept weights, those of smallest magnitude. If it
    is known which of a layer's kept weights are useful, the others go first. A layer that keeps
    fewer weights than are its due has `room`, for which nothing is dropped. Taken `together`, the
    layers are compared with each other, and only the density of all of them stays.
    """
    layers = [layer for layer in numbers if layer in scores]
    changes: Changes = {}
    for group in _groups(layers, together):
        number = min(sum(numbers[n] for n in group), sum(theta.mask.kept(n) for n in group))
        grown = _grown(theta.mask, scores, group, number)
        free = sum((room or {}).get(layer, 0) for layer in group)
        leaving = max(0, sum(map(len, grown.values())) - free)
        dropped = smallest_weights(theta, group, leaving, useful)
        changes |= {layer: Change(grown[layer], dropped[layer]) for layer in group}
    return changed(theta, changes), changes


def changed(theta: Theta, changes: Changes) -> Theta:
    """The model with these changes made to its mask."""
    kept = {
        layer: np.union1d(np.setdiff1d(theta.mask.indices(layer), change.dropped), change.grown)
        for layer, change in changes.items()
    }
    return theta.remasked(theta.mask.replace(kept))


def drop(
    theta: Theta,
    numbers: Mapping[str, int],
    useful: Useful | None = None,
    *,
    together: bool = False,
) -> tuple[Theta, Changes]:
    """Drop so many weights of smallest magnitude; `together`, so many of all layers."""
    none = np.empty(0, dtype=np.int32)
    changes: Changes = {}
    for group in _groups(list(numbers), together):
        count = sum(numbers[layer] for layer in group)
        dropped = smallest_weights(theta, group, count, useful)
        changes |= {layer: Change(none, dropped[layer]) for layer in group}
    return changed(theta, changes), changes


def _groups(layers: Sequence[str], together: bool) -> Iterable[Sequence[str]]:
    """The layers whose weights are compared with each other."""
    return ([layers] if layers else []) if together else [[layer] for layer in layers]


def _grown(
    mask: Mask, scores: Mapping[str, SparseVector], group: Sequence[str], number: int
) -> Positions:
    """The pruned weights of largest score in some layers together; ties to the first."""
    growable = {n: ~np.isin(scores[n].indices, mask.indices(n)) for n in group}
    growable = {n: growable[n] & (scores[n].values != 0) for n in group}
    values = {n: scores[n].values[growable[n]] for n in group}
    chosen = largest(np.concatenate(list(values.values())), number)
    return {
        n: scores[n].indices[growable[n]][own]
        for n, own in _split(chosen, {n: len(values[n]) for n in group}).items()
    }


def smallest_weights(
    theta: Theta, group: Sequence[str], count: int, useful: Useful | None = None
) -> Positions:
    """The kept weights of smallest magnitude in some layers together.

    Useless ones come first. Of several layers, each keeps its largest weight.
    """
    values = {layer: theta.kept(layer) for layer in group}
    first = {
        layer: np.zeros(len(own), dtype=np.bool_) if useful is None else ~useful(layer)
        for layer, own in values.items()
    }
    allowed = {layer: np.ones(len(own), dtype=np.bool_) for layer, own in values.items()}
    if len(group) > 1:
        for layer, own in values.items():
            allowed[layer][largest(own, 1)] = False
    droppable = np.flatnonzero(np.concatenate(list(allowed.values())))
    joined, marked = np.concatenate(list(values.values())), np.concatenate(list(first.values()))
    chosen = droppable[least(joined[droppable], marked[droppable], count)]
    parts = _split(chosen, {layer: len(own) for layer, own in values.items()})
    return {layer: theta.mask.indices(layer)[own] for layer, own in parts.items()}


def _split(places: NDArray[np.intp], lengths: Mapping[str, int]) -> dict[str, NDArray[np.intp]]:
    """Sorted places in layers laid end to end, by layer.

    >>> {name: own.tolist() for name, own in _split(np.array([1, 3, 4]), {"a": 3, "b": 2}).items()}
    {'a': [1], 'b': [0, 1]}
    """
    found, start = {}, 0
    for layer, length in lengths.items():
        begin, end = np.searchsorted(places, (start, start + length))
        found[layer] = places[begin:end] - start
        start += length
    return found


def least(values: NDArray[np.float32], first: NDArray[np.bool_], count: int) -> NDArray[np.intp]:
    """Sorted places of the smallest magnitudes, but those marked come first.

    >>> least(np.array([4, 3, 2, 1], "f4"), np.array([True, True, False, False]), 3)
    array([0, 1, 3])
    """
    marked, others = np.flatnonzero(first), np.flatnonzero(~first)
    chosen = marked[smallest(values[marked], count)]
    rest = others[smallest(values[others], count - len(chosen))]
    return np.sort(np.concatenate([chosen, rest]))


def drop_scores(
    weights: NDArray[np.float32], gradients: NDArray[np.float32], scaled: NDArray[np.float32]
) -> NDArray[np.float32]:
    """What the loss gains if each weight is dropped, to second order: -g w + w^2 F / 2.

    `scaled` are the gradients over the root of 2 F. A weight without a gradient has F = 0.

    >>> weights, gradients = np.array([2, 2, 2], "f4"), np.array([1, -1, 0], "f4")
    >>> drop_scores(weights, gradients, np.array([0.5, 0.5, 0], "f4")).tolist()  # F = 2
    [2.0, 6.0, 0.0]
    """
    ratio = np.divide(gradients, scaled, out=np.zeros_like(gradients), where=scaled != 0)
    fisher = ratio.astype(np.float64) ** 2 / 2
    return (weights * (weights * fisher / 2 - gradients)).astype(np.float32)


def smallest_places(theta: Theta, counts: Mapping[str, int]) -> NDArray[np.intp]:
    """Where in its vector a theta has so many weights a layer of smallest magnitude (FedMef)."""
    found = [
        theta.places[layer].start + smallest(theta.kept(layer), counts.get(layer, 0))
        for layer in theta.mask
    ]
    return np.concatenate(found)
