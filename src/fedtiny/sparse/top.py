"""The largest weights and gradients; the order is the same everywhere, ties to the lower position.

The buffer is the one in which a device keeps its largest gradients (Alg. 2, line 12).
"""

from math import prod

import numpy as np
from numpy.typing import NDArray

from fedtiny.models.param_spec import Shape
from fedtiny.sparse.vector import SparseVector

SLAB_PER_COUNT = 4  # a slab holds at most so many times the values that are looked for


def slab_values(shape: Shape, count: int) -> int:
    """Values of the largest slab of a layer's gradient that is held: one filter at least.

    >>> slab_values((5, 64), 48), slab_values((5, 64), 1), slab_values((5, 64), 100)
    (192, 64, 320)
    """
    return min(prod(shape), max(SLAB_PER_COUNT * count, prod(shape[1:])))


def highest(scores: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Sorted positions of the `count` highest scores.

    >>> highest(np.array([1.0, -3.0, 3.0, 1.0]), 2)
    array([0, 2])
    """
    if not 0 < count < len(scores):
        return np.arange(len(scores) if count > 0 else 0)
    cut = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen = scores > cut
    ties = np.flatnonzero(scores == cut)
    chosen[ties[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def largest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Sorted positions of the `count` values of largest magnitude.

    >>> largest(np.array([1.0, -3.0, 3.0, 2.0]), 2)
    array([1, 2])
    >>> largest(np.array([1.0, 1.0, 1.0]), 2)
    array([0, 1])
    """
    return highest(_magnitudes(values), count)


def smallest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Sorted positions of the `count` values of smallest magnitude, ties to the lower position.

    >>> smallest(np.array([1.0, -3.0, 1.0, 1.0]), 2)
    array([0, 2])
    """
    return highest(-_magnitudes(values), count)


def _magnitudes(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Absolute values; what is no number ranks as the largest."""
    magnitudes = np.abs(values)
    return np.where(np.isnan(magnitudes), np.inf, magnitudes)


class TopBuffer:
    """The `count` values of largest magnitude seen so far, in O(count) memory.

    Values come in slabs, in any cut and order; the outcome is that of a full sort with ties to
    the lower position. A slab is looked at and let go, so beside the buffer there is never more
    than the slab that the caller holds.
    """

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.count = min(count, size)
        self._indices = np.empty(0, dtype=np.int32)
        self._values = np.empty(0, dtype=np.float32)

    def push(self, indices: NDArray[np.integer], values: NDArray[np.float32]) -> None:
        """Offer a slab of values at distinct positions not offered before."""
        if len(self._indices) == self.count:
            threshold = np.fmin.reduce(np.abs(self._values), initial=np.inf)
            above = ~(np.abs(values) < threshold)  # what is no number among them
            indices, values = indices[above], values[above]
        joined = np.concatenate([self._indices, indices.astype(np.int32, copy=False)])
        order = np.argsort(joined)
        joined, values = joined[order], np.concatenate([self._values, values])[order]
        best = largest(values, self.count)
        self._indices, self._values = joined[best], values[best]

    def result(self) -> SparseVector:
        """What is in the buffer, sorted by position."""
        return SparseVector(self.size, self._indices, self._values)
