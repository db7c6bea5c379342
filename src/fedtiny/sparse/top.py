"""The buffer in which a device keeps its largest gradients (Alg. 2, line 12)."""

from math import prod

import numpy as np
from numpy.typing import NDArray

from fedtiny.models.param_spec import Shape
from fedtiny.sparse.topk import largest
from fedtiny.sparse.vector import SparseVector

SLAB_PER_COUNT = 4  # a slab holds at most so many times the values that are looked for


def slab_values(shape: Shape, count: int) -> int:
    """Values of the largest slab of a layer's gradient that is held: one filter at least.

    >>> slab_values((5, 64), 48), slab_values((5, 64), 1), slab_values((5, 64), 100)
    (192, 64, 320)
    """
    return min(prod(shape), max(SLAB_PER_COUNT * count, prod(shape[1:])))


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
            above = ~(np.abs(values) < self._threshold())  # what is no number among them
            indices, values = indices[above], values[above]
        joined = np.concatenate([self._indices, indices.astype(np.int32, copy=False)])
        order = np.argsort(joined)
        joined, values = joined[order], np.concatenate([self._values, values])[order]
        best = largest(values, self.count)
        self._indices, self._values = joined[best], values[best]

    def _threshold(self) -> float:
        return float(np.fmin.reduce(np.abs(self._values), initial=np.inf))

    def result(self) -> SparseVector:
        """What is in the buffer, sorted by position."""
        return SparseVector(self.size, self._indices, self._values)
