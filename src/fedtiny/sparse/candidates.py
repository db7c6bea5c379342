"""The pool of coarse-pruned candidates (Alg. 1, input)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import largest


@dataclass(frozen=True, eq=False)
class CandidatePool:
    """Magnitude cuts of one model with different layer densities.

    In each layer the cuts nest, so one theta at every layer's largest density, with the number
    of kept weights by candidate and layer, carries the whole pool.
    """

    theta: Theta
    counts: NDArray[np.int32]

    def __post_init__(self) -> None:
        layers = len(self.theta.param_spec.prunable)
        if self.counts.ndim != 2 or self.counts.shape[1] != layers or not len(self.counts):
            raise ValueError(f"a pool needs one row of {layers} layer counts a candidate")
        kept = np.array(list(self.theta.mask.counts.values()))
        if (self.counts < 0).any() or (self.counts > kept).any():
            raise ValueError("a candidate keeps more weights of a layer than the pool carries")

    @classmethod
    def cut(cls, dense: Theta, counts: NDArray[np.int32]) -> "CandidatePool":
        """Prune a model by magnitude to the largest of the counts in each layer."""
        return cls(prune_by_magnitude(dense, counts.max(axis=0)), counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[Theta]:
        return (self[c] for c in range(len(self)))

    def __getitem__(self, candidate: int) -> Theta:
        """The parameters of one candidate, with its mask."""
        return prune_by_magnitude(self.theta, self.counts[candidate])

    def is_same(self, other: "CandidatePool") -> bool:
        """Whether both are cuts of one theta in the same places."""
        return self.theta is other.theta and np.array_equal(self.counts, other.counts)

    @property
    def densities(self) -> list[float]:
        """Total density of each candidate."""
        total = self.theta.param_spec.prunable_count
        return [float(row.sum()) / total for row in self.counts]


class CutCandidates:
    """The candidates of the pool asked for last, cut once for all devices."""

    def __init__(self) -> None:
        self._pool: CandidatePool | None = None
        self._thetas: list[Theta] = []

    def of(self, pool: CandidatePool) -> list[Theta]:
        """Every candidate's parameters."""
        if self._pool is None or not pool.is_same(self._pool):
            self._pool, self._thetas = pool, list(pool)
        return self._thetas

    def forget(self) -> None:
        """Let go of them: selection is over."""
        self._pool, self._thetas = None, []


def prune_by_magnitude(theta: Theta, counts: NDArray[np.integer]) -> Theta:
    """Keep the given number of largest weights in each layer, ties to the lower position."""
    chosen = {
        layer: largest(theta.kept(layer), int(count))
        for layer, count in zip(theta.mask, counts, strict=True)
    }
    return theta.pruned_to(chosen)
