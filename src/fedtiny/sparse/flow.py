"""Layer budgets by synaptic flow: weights go where most passes through, for the operations spent.

Layer counts are those of pruning the untrained network by SynFlow's score with one threshold, the
score of a weight being divided by (its operations)^beta. They need no data and no training, so that
what a run costs is known before it starts.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.densities import Counts, budget, operations
from fedtiny.sparse.iterative import Scores, prune_iteratively
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

Measure = Callable[[Mask], Scores]
"""The synaptic flow |w dR/dw| of each kept weight of a network, its weights as initialized."""


class LayerFlow:
    """How much flows through the layers of an untrained network, and what their weights cost.

    `uses` is how often an image uses each weight of a layer: its operations. The measure is opened
    if it is needed at all. Counts are worked out once.
    """

    def __init__(
        self, param_spec: ParamSpec, uses: Mapping[str, int], measure: Callable[[], Measure]
    ) -> None:
        self.param_spec = param_spec
        self.uses = uses
        self._open = measure
        self._known: dict[tuple[float, float, int], Counts] = {}

    def with_scores(self, adopted: Callable[[Scores], Scores]) -> "LayerFlow":
        """The same network, with other scores in the place of those that are measured."""

        def opened() -> Measure:
            measure = self._open()
            return lambda mask: adopted(measure(mask))

        return LayerFlow(self.param_spec, self.uses, opened)

    @cached_property
    def _measure(self) -> Measure:
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
        if budget(self.param_spec, density) == self.param_spec.prunable_count:
            return np.array(list(self.param_spec.sizes.values()), dtype=np.int32)
        price = {layer: float(uses) ** beta for layer, uses in self.uses.items()}
        full = Mask.full(self.param_spec)
        theta = prune_iteratively(
            Theta(full, np.zeros(length(full), np.float32)),
            lambda now: {n: v / price[n] for n, v in self._measure(now.mask).items()},
            density,
            iterations=iterations,
            budgets="global",
        )
        return np.array(list(theta.mask.counts.values()), dtype=np.int32)

    def operations(self, counts: Counts) -> int:
        """Multiply-adds of so many kept weights, for an image."""
        return int(counts.astype(np.int64) @ operations(self.param_spec, self.uses))
