"""The pool of coarse-pruned candidates (Alg. 1, input)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import highest, largest

Scores = Mapping[str, NDArray[np.floating]]
"""By layer, one score for each kept weight, in order of position."""


@dataclass(frozen=True, eq=False)
class CandidatePool:
    """Cuts of one model with different layer densities, all in one order of its weights.

    In each layer the cuts nest, so one theta at every layer's largest density, with the number
    of kept weights by candidate and layer, carries the whole pool. The order is that of magnitude,
    or that of ranks: of each kept weight of the theta its place in its layer, from 0.
    """

    theta: Theta
    counts: NDArray[np.int32]
    ranks: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        layers = len(self.theta.param_spec.prunable)
        if self.counts.ndim != 2 or self.counts.shape[1] != layers or not len(self.counts):
            raise ValueError(f"a pool needs one row of {layers} layer counts a candidate")
        kept = np.array(list(self.theta.mask.counts.values()))
        if (self.counts < 0).any() or (self.counts > kept).any():
            raise ValueError("a candidate keeps more weights of a layer than the pool carries")
        if self.ranks is not None and not self._are_ranked():
            raise ValueError("a pool's ranks must name every place of each layer once")

    def _are_ranked(self) -> bool:
        assert self.ranks is not None
        mask = self.theta.mask
        return self.ranks.shape == (mask.count,) and all(
            np.array_equal(np.sort(self.ranks[self.theta.places[layer]]), np.arange(count))
            for layer, count in mask.counts.items()
        )

    @classmethod
    def cut(
        cls, model: Theta, counts: NDArray[np.int32], scores: Scores | None = None
    ) -> "CandidatePool":
        """Prune a model to the largest of the counts in each layer.

        By magnitude, or by scores, of which there is one for each kept weight by layer.
        """
        if scores is None:
            return cls(prune_by_magnitude(model, counts.max(axis=0)), counts)
        most = dict(zip(model.mask, counts.max(axis=0).tolist(), strict=True))
        chosen = {layer: highest(scores[layer], most[layer]) for layer in model.mask}
        ranks = [
            np.argsort(np.argsort(-scores[n][own], kind="stable")) for n, own in chosen.items()
        ]
        return cls(model.pruned_to(chosen), counts, np.concatenate(ranks).astype(np.int32))

    def __len__(self) -> int:
        return len(self.counts)

    def __iter__(self) -> Iterator[Theta]:
        return (self[c] for c in range(len(self)))

    def __getitem__(self, candidate: int) -> Theta:
        """The parameters of one candidate, with its mask."""
        counts = self.counts[candidate]
        if self.ranks is None:
            return prune_by_magnitude(self.theta, counts)
        places = self.theta.places
        return self.theta.pruned_to(
            {
                layer: np.flatnonzero(self.ranks[places[layer]] < count)
                for layer, count in zip(self.theta.mask, counts, strict=True)
            }
        )

    def is_same(self, other: "CandidatePool") -> bool:
        """Whether both are cuts of one theta in the same places."""
        if self.theta is not other.theta or not np.array_equal(self.counts, other.counts):
            return False
        if self.ranks is None or other.ranks is None:
            return self.ranks is other.ranks
        return np.array_equal(self.ranks, other.ranks)

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
