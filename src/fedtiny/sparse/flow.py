"""Layer budgets by synaptic flow: weights go where most passes through, for the operations spent.

Layer counts are those of pruning the untrained network by SynFlow's score with one threshold, the
score of a weight being divided by (its operations)^beta; layers below their floor are filled up.
They need no data and no training, so that what a run costs is known before it starts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.densities import Counts, budget, floor_of, operations, with_floor

Prune = Callable[[Sequence[float], Sequence[int]], Sequence[int]]
"""Layer counts, given the price of a weight of each layer and the totals to prune to in turn."""


class LayerFlow:
    """How much flows through the layers of an untrained network, and what their weights cost.

    `uses` is how often an image uses each weight of a layer: its operations. The network is opened
    if it is needed at all. Counts are worked out once. `floors` has the least share of its uniform
    count that a layer keeps. Whether flow is `normalized` is told to whoever scores by it.
    """

    def __init__(
        self,
        param_spec: ParamSpec,
        uses: Mapping[str, int],
        prune: Callable[[], Prune],
        *,
        floors: Mapping[str, float] | None = None,
        normalized: bool = False,
    ) -> None:
        self.param_spec = param_spec
        self.uses = uses
        self.floors = floors or {}
        self.normalized = normalized
        self.passes = 0
        """Images of ones that were taken through the network and back so far."""
        self._open = prune
        self._known: dict[tuple[float, float, int], Counts] = {}

    def with_counts(self, adopted: Callable[[Counts], Counts]) -> "LayerFlow":
        """The same network, with other counts in the place of those that are found."""

        def opened() -> Prune:
            return lambda *asked: adopted(np.array(self._prune(*asked), dtype=np.int32)).tolist()

        return LayerFlow(
            *(self.param_spec, self.uses, opened), floors=self.floors, normalized=self.normalized
        )

    @cached_property
    def _prune(self) -> Prune:
        return self._open()

    def counts(self, density: float, beta: float, iterations: int) -> Counts:
        """Kept weights of each layer at a density: flow over operations^beta, one threshold."""
        key = (density, beta, iterations)
        if key not in self._known:
            self._known[key] = self._counts(density, beta, iterations)
        return self._known[key]

    def knowing(
        self, density: float, beta: float, iterations: int, counts: Sequence[int]
    ) -> "LayerFlow":
        """Itself, once it was told what it would find."""
        self._known[density, beta, iterations] = np.array(counts, dtype=np.int32)
        return self

    def _counts(self, density: float, beta: float, iterations: int) -> Counts:
        """The density falls exponentially, as in `prune_iteratively`."""
        sizes, most = list(self.param_spec.sizes.values()), budget(self.param_spec, density)
        if most == sum(sizes):
            return np.array(sizes, dtype=np.int32)
        if most == len(sizes):
            return np.ones(len(sizes), dtype=np.int32)
        prices = [float(self.uses[layer]) ** beta for layer in self.param_spec.sizes]
        shares = (step / iterations for step in range(1, iterations + 1))
        totals = [budget(self.param_spec, density**share) for share in shares]
        counts = np.array(self._prune(prices, totals), dtype=np.int32)
        self.passes += iterations
        return with_floor(self.param_spec, density, counts, self.floors)

    def least(self, density: float) -> Counts:
        """The fewest weights that each layer keeps at a density."""
        return floor_of(self.param_spec, density, self.floors)

    def operations(self, counts: Counts) -> int:
        """Multiply-adds of so many kept weights, for an image."""
        return int(counts.astype(np.int64) @ operations(self.param_spec, self.uses))
