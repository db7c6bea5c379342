"""Means that a few devices cannot move far: of the middle values, clipped, or of those alike.

Every device counts the same, whatever its weight; what every device gave is held until the end.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.sparse.mean import Value, WeightedMean, checked_shapes, in_chunks
from fedtiny.sparse.vector import SparseVector

STEPS = 3  # of centered clipping


class Mean(Protocol):
    """Takes one device's values at a time."""

    def add(self, values: Mapping[str, Value], weight: float) -> None:
        """Count one device's values in."""

    def dense(self) -> dict[str, NDArray[np.float32]]:
        """The means of arrays."""

    def sparse(self) -> dict[str, SparseVector]:
        """The means of sparse vectors."""


Cut = Callable[[int], int]
"""How many of n values are left out at each end; fewer than half."""


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
        self._arrays: dict[str, list[NDArray[np.generic]]] = {}
        self._vectors: dict[str, list[SparseVector]] = {}
        self._shapes: dict[str, object] | None = None

    def add(self, values: Mapping[str, Value], weight: float) -> None:
        """Keep one device's values."""
        self._shapes = checked_shapes(values, self._shapes)
        for name, value in values.items():
            if isinstance(value, SparseVector):
                self._vectors.setdefault(name, []).append(value)
            else:
                self._arrays.setdefault(name, []).append(np.array(value))

    def dense(self) -> dict[str, NDArray[np.float32]]:
        """The middle of arrays."""
        return {
            name: self._of_rows([array.reshape(-1) for array in arrays]).reshape(arrays[0].shape)
            for name, arrays in self._arrays.items()
        }

    def sparse(self) -> dict[str, SparseVector]:
        """The middle of sparse vectors, at every position that any device has."""
        return {name: self._of_vectors(vectors) for name, vectors in self._vectors.items()}

    def _of_vectors(self, vectors: Sequence[SparseVector]) -> SparseVector:
        indices, rows = rows_of(vectors, self.missing)
        return SparseVector(vectors[0].size, indices, self._of_rows(list(rows)))

    def _of_rows(self, rows: Sequence[NDArray[np.generic]]) -> NDArray[np.float32]:
        """The middle of the devices' values at each place."""
        found = np.empty(len(rows[0]), np.float32)

        def find(chunk: slice) -> None:
            found[chunk] = _robust_mean(np.stack([row[chunk] for row in rows], axis=1), self.cut)

        in_chunks(len(found), find)
        return found + np.float32(0)  # of zeros of either sign makes one


def rows_of(
    vectors: Sequence[SparseVector], missing: np.float32
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Every position that one of the vectors has, and a row of values there for each of them."""
    indices = np.unique(np.concatenate([vector.indices for vector in vectors]))
    rows = np.full((len(vectors), len(indices)), missing, np.float32)
    for row, vector in zip(rows, vectors, strict=True):
        row[np.searchsorted(indices, vector.indices)] = vector.values
    return indices, rows


def _robust_mean(values: NDArray[np.generic], cut: Cut) -> NDArray[np.float64]:
    """The mean of each row without its extremes; NaN stands for no value."""
    ordered = np.sort(values, axis=1)  # NaN goes to the end
    counts = values.shape[1] - np.isnan(ordered).sum(axis=1)
    found = np.empty(len(values))
    for count in np.unique(counts).tolist():
        left_out, own = cut(count), counts == count
        found[own] = ordered[own, left_out : count - left_out].mean(axis=1, dtype=np.float64)
    return found


class _HeldMean:
    """A mean of whatever every device gave, as one row of all its values."""

    def __init__(self, holders_only: bool = False) -> None:
        self.holders_only = holders_only
        self._held: list[Mapping[str, Value]] = []
        self._shapes: dict[str, object] | None = None

    def add(self, values: Mapping[str, Value], weight: float) -> None:
        """Keep one device's values."""
        self._shapes = checked_shapes(values, self._shapes)
        self._held.append(dict(values))

    def dense(self) -> dict[str, NDArray[np.float32]]:
        """The means of arrays."""
        found = self._found.items()
        return {name: value for name, value in found if not isinstance(value, SparseVector)}

    def sparse(self) -> dict[str, SparseVector]:
        """The means of sparse vectors."""
        found = self._found.items()
        return {name: value for name, value in found if isinstance(value, SparseVector)}

    @cached_property
    def _found(self) -> dict[str, Value]:
        return self._reduced() if self._held and self._held[0] else {}

    def _reduced(self) -> dict[str, Value]:
        raise NotImplementedError

    def _rows(self, name: str, missing: np.float32) -> NDArray[np.float64]:
        """One row a device of the values of a name."""
        held = [values[name] for values in self._held]
        vectors = [value for value in held if isinstance(value, SparseVector)]
        if vectors:
            return rows_of(vectors, missing)[1].astype(np.float64)
        return np.stack([np.asarray(value, np.float64).reshape(-1) for value in held])

    def _shaped(self, name: str, values: NDArray[np.float64]) -> Value:
        """Values in place of those of one device."""
        held = [own[name] for own in self._held]
        vectors = [value for value in held if isinstance(value, SparseVector)]
        if vectors:
            indices, _ = rows_of(vectors, np.float32(0))
            return SparseVector(vectors[0].size, indices, values.astype(np.float32))
        return values.reshape(np.asarray(held[0]).shape).astype(np.float32)


class CenteredMean(_HeldMean):
    """Centered clipping (Karimireddy et al., ICML 2021): steps of the mean of clipped differences.

    It begins at the median and goes `STEPS` steps; a device's difference from where it is counts up
    to the median of the devices' differences. Over holders, who lacks a value has no difference.

    >>> mean = CenteredMean()
    >>> for value in (1.0, 2.0, 3.0, 2.0, 1e30):
    ...     mean.add({"x": np.array([value])}, weight=1)
    >>> bool(2 <= mean.dense()["x"][0] < 2.5)
    True
    """

    def _reduced(self) -> dict[str, Value]:
        missing = np.float32(np.nan if self.holders_only else 0)
        rows = {name: self._rows(name, missing) for name in self._held[0]}
        centers = {name: np.nanmedian(own, axis=0) for name, own in rows.items()}
        for _ in range(STEPS):
            steps = {name: np.nan_to_num(own - centers[name]) for name, own in rows.items()}
            squares = sum((own**2).sum(axis=1) for own in steps.values())
            norms = np.sqrt(squares)
            shares = np.minimum(1, np.median(norms) / np.maximum(norms, np.finfo(float).tiny))
            for name, own in steps.items():
                holders = (~np.isnan(rows[name])).sum(axis=0)
                centers[name] = centers[name] + (own * shares[:, None]).sum(axis=0) / holders
        return {name: self._shaped(name, own) for name, own in centers.items()}


class KrumMean(_HeldMean):
    """Multi-Krum (Blanchard et al., NeurIPS 2017): the mean of the devices nearest to the others.

    The share `trim` of the devices, rounded up, is left out: those whose distances to as many
    nearest ones as would be honest are the largest.
    """

    def __init__(self, left_out: "Cut", holders_only: bool = False) -> None:
        super().__init__(holders_only)
        self.left_out = left_out

    def _reduced(self) -> dict[str, Value]:
        mean = WeightedMean(self.holders_only)
        for device in self.chosen():
            mean.add(self._held[device], 1)
        return mean.result()

    def chosen(self) -> list[int]:
        """The devices that count, in order."""
        count = len(self._held)
        far = self.left_out(count)
        products = np.zeros((count, count))
        for name in self._held[0]:
            rows = self._rows(name, np.float32(0))
            rows -= np.median(rows, axis=0)
            products += rows @ rows.T
        lengths = np.diag(products)
        squares = np.maximum(lengths[:, None] + lengths - 2 * products, 0)
        nearest = np.sort(squares, axis=1)[:, 1 : max(2, count - far - 1)]
        order = np.argsort(np.sqrt(nearest).sum(axis=1), kind="stable")
        return sorted(order[: count - far].tolist())


class BucketMean(_HeldMean):
    """Bucketing (Karimireddy et al., ICLR 2022): a robust mean of the means of a few devices each.

    Devices that differ much are mixed at random, so that fewer of them look like liars.
    """

    def __init__(
        self, mean: Mean, size: int, draw: np.random.Generator, holders_only: bool = False
    ) -> None:
        super().__init__(holders_only)
        self.mean, self.size, self.draw = mean, size, draw

    def _reduced(self) -> dict[str, Value]:
        mixed = self.draw.permutation(len(self._held)).tolist()
        for start in range(0, len(mixed), self.size):
            bucket = WeightedMean(self.holders_only)
            for device in sorted(mixed[start : start + self.size]):
                bucket.add(self._held[device], 1)
            self.mean.add(bucket.result(), 1)
        return {**self.mean.dense(), **self.mean.sparse()}
