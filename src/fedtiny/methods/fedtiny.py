"""FedTiny: adaptive batch-norm selection, then progressive pruning."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ConfigError, FedTinyError, ModelError
from fedtiny.federation.messages import HOPELESS_LOSS, pool_arrays
from fedtiny.federation.method import CoarseRequest, Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import BnStatistics, Losses, Program, SecondMoment
from fedtiny.graph.ir import Graph
from fedtiny.methods.at_start import prune_to_budgets
from fedtiny.methods.growth import GROWTH, Growth
from fedtiny.methods.selection import (
    ORDERS,
    Candidates,
    Statistics,
    asked,
    candidate_counts,
    choose,
    cut_pool,
    plain_counts,
    record,
    shared_out,
)
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.adjust import Useful, drop, grow_and_drop
from fedtiny.sparse.candidates import CandidatePool

SMALLEST_SHARE = 1e-8  # of one device in a mean, for a hopeless loss to show in it
ROOM, GROWN = "room", "grown"  # what the server remembers of weights that are dropped later


class FedTiny(Method):
    """The paper's method: adaptive batch-norm selection, then progressive pruning.

    Either module can be switched off, for the ablation. Beyond the paper, candidates may be of
    several kinds (`--selection.pool`), and adjustments may grow by other rules than the averaged
    gradient (`--pruning.growth`), drop a round later (`--pruning.drop`) and move weights between
    layers (`--pruning.redistribute`).
    """

    name = "fedtiny"
    pool: ClassVar[str] = "magnitude"
    tolerance: ClassVar[float] = 0.0
    growth: ClassVar[str] = "gradient"
    drop: ClassVar[str] = "with_growth"

    def check(self, param_spec: ParamSpec) -> None:
        super().check(param_spec)
        if self.config.selection.kind == "none":
            return
        if self.config.selection.kind == "adaptive_bn" and not param_spec.norms:
            raise ModelError(
                "the model has no batch-norm layer, which adaptive BN selection measures; add "
                "nn.BatchNorm2d layers or choose --selection.kind vanilla"
            )
        if len(self.kinds) > self.config.pool_size:
            raise ConfigError(
                f"a pool of {self.config.pool_size} cannot have {len(self.kinds)} kinds of "
                "candidates; raise --selection.pool-size"
            )
        self._check_operations(param_spec)

    def _check_operations(self, param_spec: ParamSpec) -> None:
        """Under a budget of FLOPs no kind may take more than the layer budgets do."""
        if not self.config.flops_budget or self.flow is None:
            return
        most = self.flow.operations(self.layer_counts(param_spec))
        for kind in self.kinds:
            if self.flow.operations(plain_counts(self, kind, param_spec)) > most:
                raise ConfigError(
                    f"candidates of kind '{kind}' take more operations than --flops-budget "
                    f"allows; leave '{kind}' out of --selection.pool"
                )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of candidates that are compared."""
        asked_for = self.config.selection.pool
        return tuple((self.pool if asked_for is None else asked_for).split(","))

    def coarse_prune(self, server: Server) -> None:
        """Choose the least biased of a pool of candidates (Alg. 1)."""
        if self._reclaims:
            _graph(server)  # to fail before the rounds do
        if self.config.selection.kind == "none":
            prune_to_budgets(self, server)
            return
        candidates = Candidates(
            {kind: cut_pool(self, kind, size, server) for kind, size in self._sizes.items()}
        )
        statistics, losses = self._measured(server, candidates)
        tolerance = self.config.selection.tolerance
        tolerance = self.tolerance if tolerance is None else tolerance
        choice = choose(server, candidates, losses, tolerance)
        chosen = {name: rows[choice.candidate] for name, rows in statistics.items()}
        server.theta = candidates[choice.candidate].with_dense(chosen)
        server.memory["selection"] = record(candidates, losses, choice, tolerance)

    @property
    def _sizes(self) -> dict[str, int]:
        return shared_out(self.kinds, self.config.pool_size)

    def candidates(self, server: Server) -> CandidatePool:
        """Magnitude-pruned candidates with noisy layer densities (Sec. 4.1.2)."""
        return cut_pool(self, "magnitude", self.config.pool_size, server)

    @property
    def _measuring(self) -> BnStatistics:
        settings = self.config.selection
        second_moment: SecondMoment = "square" if settings.variance == "pooled" else "var"
        return BnStatistics(settings.batch_size, settings.passes, second_moment)

    def coarse_requests(self, param_spec: ParamSpec) -> tuple[CoarseRequest, ...]:
        if self.config.selection.kind == "none":
            return ()
        return tuple(
            request
            for kind, size in self._sizes.items()
            for request in self._requests_about(kind, size, param_spec)
        )

    def _requests_about(
        self, kind: str, size: int, param_spec: ParamSpec
    ) -> tuple[CoarseRequest, ...]:
        counts = candidate_counts(self, kind, size, param_spec)
        most = counts.max(axis=0)
        kept = dict(zip(param_spec.prunable, most.tolist(), strict=True))
        by_magnitude = ORDERS[kind] is ORDERS["magnitude"]
        ranks = None if by_magnitude else np.zeros(most.sum(), np.int32)
        arrays = pool_arrays(counts, None, ranks)
        if self.config.selection.kind == "vanilla":
            return (CoarseRequest((Losses(),), kept, arrays),)
        statistics = {
            name: np.zeros((size, *shape), np.float32)
            for name, shape in param_spec.statistics.items()
        }
        return (
            CoarseRequest((self._measuring,), kept, arrays),
            CoarseRequest((Losses(),), kept, pool_arrays(counts, statistics, ranks)),
        )

    def scored_images(self, public: int) -> int:
        chooses = self.config.selection.kind != "none"
        return self.config.pruning.iterations + 1 if chooses and "flow" in self.kinds else 0

    def _measured(
        self, server: Server, candidates: Candidates
    ) -> tuple[Statistics, NDArray[np.float32]]:
        """Statistics and losses of all candidates, each pool asked about by itself."""
        statistics, losses = [], []
        for pool in candidates.pools.values():
            statistics.append(self._global_statistics(server, pool))
            losses.append(asked(server, Losses(), pool, statistics[-1])["losses"])
        joined = {
            name: np.concatenate([found[name] for found in statistics]) for name in statistics[0]
        }
        return joined, finite_losses(np.concatenate(losses))

    def _global_statistics(self, server: Server, pool: CandidatePool) -> Statistics:
        """Average the devices' batch-norm statistics (Alg. 1, lines 2 to 13)."""
        if self.config.selection.kind == "vanilla":
            return {}
        found = asked(server, self._measuring, pool)
        return pooled_variance(found) if self._measuring.second_moment == "square" else found

    @property
    def _growth(self) -> Growth:
        return GROWTH[self.config.pruning.growth or self.growth]

    def score(self, server: Server) -> Program:
        """Ask for the top-a gradients of the layers whose turn it is (Alg. 2, lines 10 to 14)."""
        numbers = self.pruning_numbers(server)
        return self._growth.program(server, numbers) if numbers else ()

    def adjust(self, server: Server, outcome: Outcome) -> None:
        """Grow by averaged gradient, drop by magnitude (Alg. 2, lines 19 to 26)."""
        numbers = self.pruning_numbers(server)
        scores = self._growth.scores(server, outcome, numbers) if numbers else {}
        if self._drops_later:
            self._drop_trained(server)
        if not numbers:
            return
        room, together = self._room(server), self.config.pruning.redistribute
        server.theta, changes = grow_and_drop(
            server.theta, scores, numbers, self._useful(server), room=room, together=together
        )
        if self._drops_later:
            grown = {n: len(c.grown) - len(c.dropped) for n, c in changes.items()}
            server.memory[ROOM] = left_over(room, grown, together)
            server.memory[GROWN] = sorted({*server.memory.get(GROWN, []), *changes})

    @property
    def _drops_later(self) -> bool:
        return (self.config.pruning.drop or self.drop) == "after_training"

    def _drop_trained(self, server: Server) -> None:
        """Of layers that grew, drop as many weights as their next adjustment will grow."""
        room, due = self._room(server), {}
        for layer in server.memory.pop(GROWN, []):
            later = self.schedule.next_round(server.param_spec, layer, server.round - 1)
            if later is not None:
                kept = server.theta.mask.kept(layer) + room.get(layer, 0)
                pruned = server.param_spec.sizes[layer] - kept
                due[layer] = self.schedule.pruning_number(later, kept, pruned)
        due = {layer: max(0, number - room.get(layer, 0)) for layer, number in due.items()}
        together = self.config.pruning.redistribute
        server.theta, changes = drop(server.theta, due, self._useful(server), together=together)
        made = {layer: len(change.dropped) for layer, change in changes.items()}
        server.memory[ROOM] = {n: room.get(n, 0) + made.get(n, 0) for n in {**room, **made}}

    def _room(self, server: Server) -> Mapping[str, int]:
        """How many weights below its due number each layer keeps."""
        room: Mapping[str, int] = server.memory.get(ROOM, {})
        return room

    def _useful(self, server: Server) -> Useful | None:
        if not self._reclaims:
            return None
        return server.theta.mask.reachability(_graph(server)).useful

    @property
    def _reclaims(self) -> bool:
        return self.config.pruning.progressive and self.config.pruning.reclaim

    def pruning_numbers(self, server: Server) -> dict[str, int]:
        if not self.config.pruning.progressive:
            return {}
        return self.schedule.pruning_numbers(server.theta.mask, server.round, self._room(server))

    def summary(self, server: Server) -> dict[str, Any]:
        selection: dict[str, Any] = server.memory.get("selection", {})
        return {"selection": selection} if selection else {}


def finite_losses(losses: NDArray[np.float32]) -> NDArray[np.float32]:
    """The devices' averaged losses (Alg. 1, lines 14 to 28); of hopeless candidates, infinity."""
    finite = losses < HOPELESS_LOSS * SMALLEST_SHARE
    if not finite.any():
        raise FedTinyError(
            "no candidate has a finite loss; start anew with a lower --train.lr",
            retryable=False,
        )
    return np.where(finite, losses, np.inf).astype(np.float32)


def left_over(room: Mapping[str, int], grown: Mapping[str, int], together: bool) -> dict[str, int]:
    """The room that layers have left after growing; together, any layer may use another's.

    >>> left_over({"a": 3, "b": 1}, {"a": 3, "b": 0}, together=False)
    {'a': 0, 'b': 1}
    >>> left_over({"a": 3, "b": 1}, {"a": 0, "b": 2}, together=True)
    {'a': 1, 'b': 1}
    """
    if not together:
        return {layer: own - grown.get(layer, 0) for layer, own in room.items()}
    taken, left = sum(grown.values()), {}
    for layer, own in room.items():
        used = min(own, taken) if layer in grown else 0
        left[layer], taken = own - used, taken - used
    return left


def pooled_variance(arrays: Statistics) -> Statistics:
    """Exact statistics of all devices' data together, by the law of total variance.

    Devices send E[x^2] beside their means; sigma^2 = E[x^2] - E[x]^2.
    """
    pooled = {}
    for name, values in arrays.items():
        stem, _, kind = name.rpartition(".")
        if kind == "running_mean":
            pooled[name] = values
            square = arrays[f"{stem}.running_square"].astype(np.float64)
            variance = square - values.astype(np.float64) ** 2
            pooled[f"{stem}.running_var"] = np.maximum(variance, 0).astype(np.float32)
    return pooled


def _graph(server: Server) -> Graph:
    graph = server.public.graph if server.public else None
    if graph is None:
        raise FedTinyError(
            "the network has a layer or a shape that weights cannot be followed through; "
            "leave --pruning.reclaim out",
            retryable=False,
        )
    return graph
