"""Means that a few wrong devices cannot move far: value by value, the extremes left out."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from fedtiny.sparse.chunked import in_chunks
from fedtiny.sparse.mean import Value, checked_shapes
from fedtiny.sparse.vector import SparseVector

Cut = Callable[[int], int]
"""How many of so many values are left out at each end; fewer than half."""


def median(count: int) -> int:
    """All but the middle one or two.

    >>> [median(count) for count in (1, 2, 3, 4, 5)]
    [0, 0, 1, 1, 2]
    """
    return (count - 1) // 2


def trimmed(share: float) -> Cut:
    """A share, rounded up, so that one of few is left out too.

    >>> [trimmed(0.1)(count) for count in (1, 2, 3, 10, 11, 30)]
    [0, 0, 1, 1, 2, 3]
    """
    return lambda count: min(ceil(round(share * count, 9)), median(count))


class RobustMean:
    """A mean of the middle values; every device counts the same, whatever its weight.

    It holds what every device gave until the end. Sums are in float64 and in the order of size,
    so that not even the order of the devices matters. Of a sparse vector a missing entry is
    zero, or is left out where only holders count.

    >>> mean = RobustMean(median)
    >>> for value in (1.0, 2.0, 1e30):
    ...     mean.add({"x": np.array([value])}, weight=1)
    >>> mean.dense()["x"].tolist()
    [2.0]
    """

    def __init__(self, cut: Cut, holders_only: bool = False) -> None:
        self.cut = cut
        self.missing = np.float32(np.nan if holders_only else 0)
        self._arrays: list[dict[str, NDArray[np.generic]]] = []
        self._vectors: list[dict[str, SparseVector]] = []
        self._shapes: dict[str, object] | None = None

    def add(self, values: Mapping[str, Value], weight: float) -> None:
        """Keep one device's values."""
        self._shapes = checked_shapes(values, self._shapes)
        vectors = {name: v for name, v in values.items() if isinstance(v, SparseVector)}
        self._vectors.append(vectors)
        self._arrays.append(
            {name: np.array(v) for name, v in values.items() if name not in vectors}
        )

    def dense(self) -> dict[str, NDArray[np.float32]]:
        """The middle of arrays."""
        names = self._arrays[0] if self._arrays else {}
        return {name: self._of_arrays([own[name] for own in self._arrays]) for name in names}

    def sparse(self) -> dict[str, SparseVector]:
        """The middle of sparse vectors, at every position that any device has."""
        names = self._vectors[0] if self._vectors else {}
        return {name: self._of_vectors([own[name] for own in self._vectors]) for name in names}

    def _of_arrays(self, arrays: Sequence[NDArray[np.generic]]) -> NDArray[np.float32]:
        rows = [array.reshape(-1) for array in arrays]
        return self._of_rows(rows).reshape(arrays[0].shape)

    def _of_vectors(self, vectors: Sequence[SparseVector]) -> SparseVector:
        indices = np.unique(np.concatenate([vector.indices for vector in vectors]))
        rows = np.full((len(vectors), len(indices)), self.missing)
        for row, vector in zip(rows, vectors, strict=True):
            row[np.searchsorted(indices, vector.indices)] = vector.values
        return SparseVector(vectors[0].size, indices, self._of_rows(list(rows)))

    def _of_rows(self, rows: Sequence[NDArray[np.generic]]) -> NDArray[np.float32]:
        """The middle of the devices' values at each place."""
        found = np.empty(len(rows[0]), np.float32)

        def find(chunk: slice) -> None:
            found[chunk] = _robust_mean(np.stack([row[chunk] for row in rows], axis=1), self.cut)

        in_chunks(len(found), find)
        return found


def _robust_mean(values: NDArray[np.generic], cut: Cut) -> NDArray[np.float64]:
    """The mean of each row without its extremes; NaN stands for no value."""
    ordered = np.sort(values, axis=1)  # NaN goes to the end
    counts = values.shape[1] - np.isnan(ordered).sum(axis=1)
    found = np.empty(len(values))
    for count in np.unique(counts).tolist():
        left_out, own = cut(count), counts == count
        found[own] = ordered[own, left_out : count - left_out].mean(axis=1, dtype=np.float64)
    return found + 0.0  # of zeros of either sign makes one
