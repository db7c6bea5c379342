"""The one mean of fedtiny, unless a robust one is asked for: weights, losses, gradients alike."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.process import cores
from fedtiny.sparse.vector import SparseVector

CHUNK = 1 << 17  # values that stay in a core's cache, and are worth handing to a thread
LARGE = 1 << 20  # values that are worth several threads
THREADS = min(8, cores())

Value = NDArray[Any] | SparseVector


class WeightedMean:
    """A mean that takes one device's values at a time, so that no two devices' are held at once.

    Values are named. Arrays of a name have one shape; of a sparse vector a missing entry is
    zero, or is left out where only holders count. Sums are in float64 and in the order of adding,
    so the outcome is fixed by that order.

    >>> mean = WeightedMean()
    >>> mean.add({"x": np.array([1.0])}, weight=1)
    >>> mean.add({"x": np.array([4.0])}, weight=2)
    >>> float(mean.result()["x"][0])
    3.0
    """

    def __init__(self, holders_only: bool = False) -> None:
        self.weight = 0.0
        self._holders = WeightedMean() if holders_only else None
        self._sums: dict[str, NDArray[np.float64]] = {}
        self._sparse_sums: dict[str, _SparseSum] = {}
        self._shapes: dict[str, object] = {}

    def add(self, values: Mapping[str, Value], weight: float) -> None:
        """Count one device's values in."""
        if not 0 < weight < np.inf:
            raise ValueError(f"a weight must be above zero and finite, got {weight}")
        self._shapes = checked_shapes(values, self._shapes if self.weight else None)
        for name, value in values.items():
            self._add(name, value, weight)
        self.weight += weight
        if self._holders is not None:
            held = {
                name: SparseVector(value.size, value.indices, np.ones_like(value.values))
                for name, value in values.items()
                if isinstance(value, SparseVector)
            }
            self._holders.add(held, weight)

    def result(self) -> dict[str, Value]:
        """The means, in float32."""
        return {**self.dense(), **self.sparse()}

    def dense(self) -> dict[str, NDArray[np.float32]]:
        """The means of arrays."""
        return {name: _divided(total, self.weight) for name, total in self._sums.items()}

    def sums(self) -> dict[str, NDArray[np.float64]]:
        """The sums of arrays, for noise that is added before anything is rounded."""
        return dict(self._sums)

    def sparse(self) -> dict[str, SparseVector]:
        """The means of sparse vectors."""
        means = {name: s.mean(self.weight) for name, s in self._sparse_sums.items()}
        shares = self._holders.sparse() if self._holders is not None else {}
        for name, share in shares.items():
            mean = means[name]
            means[name] = SparseVector(mean.size, mean.indices, mean.values / share.values)
        return means

    def _add(self, name: str, value: Value, weight: float) -> None:
        if isinstance(value, SparseVector):
            self._sparse_sums.setdefault(name, _SparseSum(value.size)).add(value, weight)
            return
        if name not in self._sums:
            self._sums[name] = np.full(np.shape(value), -0.0)  # 0.0 would change the sign of -0.0
        sums, values = self._sums[name].reshape(-1), np.asarray(value).reshape(-1)

        def add(chunk: slice) -> None:
            sums[chunk] += np.multiply(values[chunk], weight, dtype=np.float64)

        in_chunks(sums.size, add)


def in_chunks(size: int, work: Callable[[slice], None]) -> None:
    """Work on a large array a chunk at a time, several threads at once; chunks are independent."""
    chunks = [slice(start, start + CHUNK) for start in range(0, size, CHUNK)]

    def through(share: Sequence[slice]) -> None:
        for chunk in share:
            work(chunk)

    if size < LARGE or THREADS == 1:
        through(chunks)
        return
    with ThreadPoolExecutor(THREADS, thread_name_prefix="chunks") as pool:
        for _ in pool.map(through, (chunks[first::THREADS] for first in range(THREADS))):
            pass


def _divided(total: NDArray[np.float64], weight: float) -> NDArray[np.float32]:
    quotient, sums = np.empty(total.shape, dtype=np.float32), total.reshape(-1)
    flat = quotient.reshape(-1)

    def divide(chunk: slice) -> None:
        flat[chunk] = sums[chunk] / weight

    in_chunks(flat.size, divide)
    return quotient


def checked_shapes(
    values: Mapping[str, Value], known: dict[str, object] | None
) -> dict[str, object]:
    """The shapes of a device's values, which must be those of the devices before it."""
    shapes = {name: _shape(value) for name, value in values.items()}
    if known is not None and shapes != known:
        raise ValueError("every device must give the same values in the same shapes")
    return shapes


def _shape(value: Value) -> object:
    return ("sparse", value.size) if isinstance(value, SparseVector) else np.shape(value)


class _SparseSum:
    """Sums by position, for as many devices as come.

    Positions pile up with the devices, and taking new ones in costs a pass over all. So vectors
    wait until they have as many positions as the sums; then all are added, in their order.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.indices = np.empty(0, dtype=np.int32)
        self.sums = np.empty(0, dtype=np.float64)
        self.waiting: list[tuple[NDArray[np.int32], NDArray[np.float64]]] = []

    def add(self, vector: SparseVector, weight: float) -> None:
        self.waiting.append((vector.indices, vector.values.astype(np.float64) * weight))
        if sum(len(indices) for indices, _ in self.waiting) >= len(self.indices):
            self._take_in()

    def _take_in(self) -> None:
        indices = _united([self.indices, *(own for own, _ in self.waiting)])
        sums = np.zeros(len(indices))
        sums[np.searchsorted(indices, self.indices)] = self.sums
        for own, weighted in self.waiting:
            sums[np.searchsorted(indices, own)] += weighted
        self.indices, self.sums, self.waiting = indices, sums, []

    def mean(self, weight: float) -> SparseVector:
        self._take_in()
        return SparseVector(self.size, self.indices, (self.sums / weight).astype(np.float32))


def _united(parts: list[NDArray[np.int32]]) -> NDArray[np.int32]:
    """All positions of sorted lists, each once: sorting what is sorted in parts is merging."""
    merged = np.sort(np.concatenate(parts), kind="stable")
    first = np.ones(len(merged), dtype=np.bool_)
    np.not_equal(merged[1:], merged[:-1], out=first[1:])
    return merged[first]
