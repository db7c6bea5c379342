"""FedTiny: adaptive batch-norm selection, then progressive pruning."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError, ModelError
from fedtiny.federation.messages import HOPELESS_LOSS, pool_arrays
from fedtiny.federation.method import CoarseRequest, Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import BnStatistics, Losses, Program, SecondMoment, TopGradients, Verb
from fedtiny.graph.ir import Graph
from fedtiny.methods.at_start import prune_to_budgets
from fedtiny.models.param_spec import ParamSpec
from fedtiny.randomness import generator
from fedtiny.sparse.adjust import grow_and_drop
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.densities import Counts, uniform_noise

Statistics = Mapping[str, NDArray[np.float32]]
SMALLEST_SHARE = 1e-8  # of one device in a mean, for a hopeless loss to show in it


class FedTiny(Method):
    """The paper's method: adaptive batch-norm selection, then progressive pruning.

    Either module can be switched off, for the ablation.
    """

    name = "fedtiny"

    def check(self, param_spec: ParamSpec) -> None:
        super().check(param_spec)
        if self.config.selection.kind == "adaptive_bn" and not param_spec.norms:
            raise ModelError(
                "the model has no batch-norm layer, which adaptive BN selection measures; add "
                "nn.BatchNorm2d layers or choose --selection.kind vanilla"
            )

    def coarse_prune(self, server: Server) -> None:
        """Choose the least biased of a pool of candidates (Alg. 1)."""
        if self._reclaims:
            _graph(server)  # to fail before the rounds do
        if self.config.selection.kind == "none":
            prune_to_budgets(self, server)
            return
        pool = self.candidates(server)
        statistics = self._global_statistics(server, pool)
        scores = self._global_losses(server, pool, statistics)
        best = int(np.argmin(scores))
        chosen = {name: rows[best] for name, rows in statistics.items()}
        server.theta = pool[best].with_dense(chosen)
        server.memory["selection"] = _record(pool, scores, best)

    def candidates(self, server: Server) -> CandidatePool:
        """Magnitude-pruned candidates with noisy layer densities (Sec. 4.1.2)."""
        return CandidatePool.cut(server.theta, self._candidate_counts(server.param_spec))

    def _candidate_counts(self, param_spec: ParamSpec) -> Counts:
        """Noise around the layer budgets; under a budget of FLOPs no candidate takes more."""
        config, draw = self.config, generator(self.config.seed, "candidates")
        even = config.pruning.budgets not in ("erk", "flow")
        return uniform_noise(
            param_spec,
            config.density,
            config.pool_size,
            draw,
            around=None if even else self.layer_counts(param_spec),
            uses=self.flow.uses if config.flops_budget and self.flow else None,
        )

    @property
    def _measuring(self) -> BnStatistics:
        settings = self.config.selection
        second_moment: SecondMoment = "square" if settings.variance == "pooled" else "var"
        return BnStatistics(settings.batch_size, settings.passes, second_moment)

    def coarse_requests(self, param_spec: ParamSpec) -> tuple[CoarseRequest, ...]:
        kind = self.config.selection.kind
        if kind == "none":
            return ()
        counts = self._candidate_counts(param_spec)
        kept = dict(zip(param_spec.prunable, counts.max(axis=0).tolist(), strict=True))
        if kind == "vanilla":
            return (CoarseRequest((Losses(),), kept, pool_arrays(counts)),)
        statistics = {
            name: np.zeros((len(counts), *shape), np.float32)
            for name, shape in param_spec.statistics.items()
        }
        return (
            CoarseRequest((self._measuring,), kept, pool_arrays(counts)),
            CoarseRequest((Losses(),), kept, pool_arrays(counts, statistics)),
        )

    def _global_statistics(self, server: Server, pool: CandidatePool) -> Statistics:
        """Average the devices' batch-norm statistics (Alg. 1, lines 2 to 13)."""
        if self.config.selection.kind == "vanilla":
            return {}
        found = _asked(server, self._measuring, pool)
        return pooled_variance(found) if self._measuring.second_moment == "square" else found

    def _global_losses(
        self, server: Server, pool: CandidatePool, statistics: Statistics
    ) -> NDArray[np.float32]:
        """Average the devices' losses of every candidate (Alg. 1, lines 14 to 28)."""
        scores = _asked(server, Losses(), pool, statistics)["losses"]
        finite = scores < HOPELESS_LOSS * SMALLEST_SHARE
        if not finite.any():
            raise FedTinyError(
                "no candidate has a finite loss; start anew with a lower --train.lr",
                retryable=False,
            )
        return np.where(finite, scores, np.inf).astype(np.float32)

    def score(self, server: Server) -> Program:
        """Ask for the top-a gradients of the layers whose turn it is (Alg. 2, lines 10 to 14)."""
        numbers = self.pruning_numbers(server)
        epsilon = self.config.pruning.gradient_epsilon
        return (TopGradients(numbers, epsilon),) if numbers else ()

    def adjust(self, server: Server, outcome: Outcome) -> None:
        """Grow by averaged gradient, drop by magnitude (Alg. 2, lines 19 to 26)."""
        numbers = self.pruning_numbers(server)
        mask = server.theta.mask
        useful = mask.reachability(_graph(server)).useful if self._reclaims else None
        server.theta, _ = grow_and_drop(server.theta, outcome.gradients, numbers, useful)

    @property
    def _reclaims(self) -> bool:
        return self.config.pruning.progressive and self.config.pruning.reclaim

    def pruning_numbers(self, server: Server) -> dict[str, int]:
        return super().pruning_numbers(server) if self.config.pruning.progressive else {}

    def summary(self, server: Server) -> dict[str, Any]:
        selection: dict[str, Any] = server.memory.get("selection", {})
        return {"selection": selection} if selection else {}


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


def _asked(
    server: Server, verb: Verb, pool: CandidatePool, statistics: Statistics | None = None
) -> Statistics:
    """What enough devices measure of a pool.

    If too few answer: simulated devices fail again when a run goes on; real ones may be back.
    """
    arrays = pool_arrays(pool.counts, statistics)
    outcome = server.ask("select", (verb,), theta=pool.theta, arrays=arrays)
    if server.enough(outcome):
        return outcome.arrays
    fleet, answered = server.config.fleet, len(outcome.answered)
    trouble = (
        f"only {answered} devices answered the selection, fewer than --fleet.min-replies "
        f"{fleet.min_replies}"
    )
    hindrances = {
        "fail-rate": fleet.fail_rate > 0,
        "straggler-rate": fleet.straggler_rate > 0,
        "min-replies": answered > 0,
    }
    lower = " or ".join(f"--fleet.{name}" for name, there in hindrances.items() if there)
    if fleet.fail_rate or fleet.straggler_rate:
        raise FedTinyError(
            f"{trouble}; start anew with a lower {lower}, or with another --seed, which failures "
            "follow",
            retryable=False,
        )
    or_lower = f", or start anew with a lower {lower}" if lower else ""
    raise FedTinyError(f"{trouble}; continue the run when more devices are there{or_lower}")


def _record(pool: CandidatePool, scores: NDArray[np.float32], best: int) -> dict[str, Any]:
    return {
        "chosen": best,
        "losses": [float(score) for score in scores],
        "densities": pool.densities,
        "layer_counts": pool.counts.tolist(),
        "layers": list(pool.theta.param_spec.prunable),
    }
