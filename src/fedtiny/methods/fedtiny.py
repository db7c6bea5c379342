"""FedTiny: adaptive batch-norm selection, then progressive pruning."""

from typing import Any, ClassVar

import numpy as np

from fedtiny.errors import ConfigError, ModelError
from fedtiny.federation.bn_statistics import measuring
from fedtiny.federation.messages import pool_arrays
from fedtiny.federation.method import CoarseRequest, Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import Losses, Program
from fedtiny.methods.growth import GROWTH, PRIVATE_GROWTH, Growth
from fedtiny.methods.pool import (
    Candidates,
    candidate_counts,
    cost_remarks,
    costed_counts,
    cut_pool,
    flow_sets_counts,
    is_by_magnitude,
    plain_cut,
    shared_out,
)
from fedtiny.methods.progressive import (
    adjust_mask,
    drop_trained,
    graph_of,
    mark_extruded,
    room_of,
)
from fedtiny.methods.selection import choose, measured, record
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.densities import Counts
from fedtiny.sparse.theta import Theta


class FedTiny(Method):
    """The paper's method: adaptive batch-norm selection, then progressive pruning.

    Either module can be switched off, for the ablation. Beyond the paper, candidates may be of
    several kinds (`--selection.pool`), and adjustments may grow by other rules than the averaged
    gradient (`--pruning.growth`), drop a round later (`--pruning.drop`), move weights between
    layers (`--pruning.redistribute`) and empty what they will drop (`--pruning.extrude`).
    """

    name = "fedtiny"
    extrudes = True
    pool: ClassVar[str] = "magnitude"
    tolerance: ClassVar[float] = 0.0
    adjusts: ClassVar[bool] = True
    growth: ClassVar[str] = "gradient"
    drop: ClassVar[str] = "with_growth"

    def check(self, param_spec: ParamSpec) -> None:
        super().check(param_spec)
        grows = self.config.pruning.progressive and self._is_private
        if grows and self._growth_kind not in PRIVATE_GROWTH:
            raise ConfigError(
                f"--pruning.growth {self._growth_kind} sends gradients at places of a device's "
                "own, which differential privacy cannot hide; use random or shared"
            )
        self._check_extrusion()
        adapts = self._selection(param_spec) == "adaptive_bn"
        if adapts and self.rescale and self.config.train.freeze_bn == 0:
            raise ConfigError(
                "--train.freeze-bn 0 keeps what adaptive BN selection has measured, which "
                "rescaling changes; set --pruning.rescale 0, or a higher --train.freeze-bn"
            )
        if "flow" in self.kinds and self.flow is None:
            raise ModelError(
                "the network cannot be built anew to measure its synaptic flow; leave 'flow' out "
                "of --selection.pool"
            )
        if len(self.kinds) > self.config.pool_size:
            raise ConfigError(
                f"a pool of {self.config.pool_size} cannot have {len(self.kinds)} kinds of "
                "candidates; raise --selection.pool-size"
            )

    def _check_extrusion(self) -> None:
        """What devices empty is known before they train, and is what the server drops."""
        asked = self.config.pruning
        others = {
            "--pruning.drop after_training": (asked.drop or self.drop) == "after_training",
            "--pruning.redistribute": asked.redistribute,
            "--pruning.reclaim": asked.reclaim,
        }
        if asked.extrude and (used := [flag for flag, on in others.items() if on]):
            raise ConfigError(
                f"--pruning.extrude and {used[0]} choose what is dropped in two ways; leave one out"
            )

    def remarks(self, param_spec: ParamSpec) -> tuple[str, ...]:
        costs = cost_remarks(self, self.kinds)
        return (*self._selection_remarks(param_spec), *self._growth_remarks(), *costs)

    def _selection_remarks(self, param_spec: ParamSpec) -> tuple[str, ...]:
        if self.config.selection.kind == self._selection(param_spec):
            return ()
        why = "selection measures batch norm, and the network has none"
        if param_spec.norms:
            why = "selection sends statistics of every candidate, which privacy's noise would drown"
        return (
            "candidates are compared without new statistics (vanilla selection): adaptive BN "
            + why,
        )

    def _growth_remarks(self) -> tuple[str, ...]:
        own = self.config.pruning.growth or self.growth
        if self._growth_kind == own or not self.config.pruning.progressive:
            return ()
        how = "at random" if self._is_private else "by gradients at places that all devices share"
        return (f"weights are grown {how}: gradients at places of a device's own are not sent",)

    @property
    def _is_private(self) -> bool:
        return self.config.privacy.differential

    def _selection(self, param_spec: ParamSpec) -> str:
        """How candidates are compared; adaptive BN selection needs batch norm, and no noise."""
        kind = self.config.selection.kind
        adapts = param_spec.norms and not self._is_private
        return "vanilla" if kind == "adaptive_bn" and not adapts else kind

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of candidates that are compared, or the first if none are."""
        selection = self.config.selection
        asked_for = tuple((selection.pool or self.pool).split(","))
        if selection.kind == "none":
            return asked_for[:1]
        if selection.pool is None:  # the method's own, as many as there are candidates
            return asked_for[: self.config.pool_size]
        return asked_for

    def coarse_prune(self, server: Server) -> None:
        """Choose the least biased of a pool of candidates (Alg. 1), or take one without noise."""
        if self._reclaims:
            graph_of(server)  # to fail before the rounds do
        if self.config.selection.kind == "none":
            server.theta = plain_cut(self, self.kinds[0], server)
            return
        candidates = Candidates(
            {kind: cut_pool(self, kind, size, server) for kind, size in self._sizes.items()}
        )
        selection = self.config.selection
        adapts = self._selection(server.param_spec) == "adaptive_bn"
        how = measuring(selection) if adapts else None
        statistics, losses = measured(server, candidates, how)
        tolerance = self.tolerance if selection.tolerance is None else selection.tolerance
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
        counts = candidate_counts(self, kind, size, param_spec, costed_counts)
        most = counts.max(axis=0)
        kept = dict(zip(param_spec.prunable, most.tolist(), strict=True))
        ranks = None if is_by_magnitude(kind) else np.zeros(most.sum(), np.int32)
        arrays = pool_arrays(counts, None, ranks)
        if self._selection(param_spec) == "vanilla":
            return (CoarseRequest((Losses(),), kept, arrays),)
        statistics = {
            name: np.zeros((size, *shape), np.float32)
            for name, shape in param_spec.statistics.items()
        }
        return (
            CoarseRequest((measuring(self.config.selection),), kept, arrays),
            CoarseRequest((Losses(),), kept, pool_arrays(counts, statistics, ranks)),
        )

    @property
    def needs_flow(self) -> bool:
        return super().needs_flow or "flow" in self.kinds

    @property
    def has_flow_budgets(self) -> bool:
        by_flow = self.config.pruning.budgets == "flow"
        return any(
            flow_sets_counts(self, kind) or (by_flow and kind != "erk") for kind in self.kinds
        )

    def first_counts(self, param_spec: ParamSpec) -> Counts:
        """Those of the kind that takes the most operations: it is not known which will be taken."""
        if self.flow is None:
            return super().first_counts(param_spec)
        counts = [costed_counts(self, kind, param_spec) for kind in self.kinds]
        return max(counts, key=self.flow.operations)

    def scored_images(self, public: int) -> int:
        return self.config.pruning.iterations + 1 if "flow" in self.kinds else 0

    @property
    def _growth(self) -> Growth:
        return GROWTH[self._growth_kind]

    @property
    def _growth_kind(self) -> str:
        """The rule that is set, or the method's own; of this, what privacy allows."""
        own, hides = self.growth, self._is_private or self.config.privacy.secure_aggregation
        if hides and own not in PRIVATE_GROWTH:
            own = "random" if self._is_private else "shared"
        return self.config.pruning.growth or own

    def score(self, server: Server) -> Program:
        """Ask for the top-a gradients of the layers whose turn it is (Alg. 2, lines 10 to 14)."""
        numbers = self.pruning_numbers(server)
        return self._growth.program(server, numbers) if numbers else ()

    def aggregate(self, server: Server, outcome: Outcome) -> Theta:
        mark_extruded(server, self.extruded(server))
        return super().aggregate(server, outcome)

    def adjust(self, server: Server, outcome: Outcome) -> None:
        """Grow by averaged gradient, drop by magnitude (Alg. 2, lines 19 to 26)."""
        numbers = self.pruning_numbers(server)
        scores = self._growth.scores(server, outcome, numbers) if numbers else {}
        drops_later = (self.config.pruning.drop or self.drop) == "after_training"
        if drops_later:
            drop_trained(server, self.schedule)
        if numbers:
            adjust_mask(server, scores, numbers, drops_later=drops_later)

    @property
    def _progressive(self) -> bool:
        return self.adjusts and self.config.pruning.progressive

    @property
    def _reclaims(self) -> bool:
        return self._progressive and self.config.pruning.reclaim

    def pruning_numbers(self, server: Server) -> dict[str, int]:
        if not self._progressive:
            return {}
        return self.schedule.pruning_numbers(server.theta.mask, server.round, room_of(server))

    def summary(self, server: Server) -> dict[str, Any]:
        selection: dict[str, Any] = server.memory.get("selection", {})
        return {"selection": selection} if selection else {}
