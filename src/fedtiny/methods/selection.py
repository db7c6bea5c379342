"""The pool of candidates by kind, what devices measure of it, and the choice (Alg. 1)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import pool_arrays
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.verbs import Verb
from fedtiny.methods.at_start import require_enough
from fedtiny.models.param_spec import ParamSpec
from fedtiny.randomness import generator
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.densities import Counts, erdos_renyi_kernel, uniform_noise
from fedtiny.sparse.iterative import Scores, pruning_order
from fedtiny.sparse.theta import Theta

Statistics = Mapping[str, NDArray[np.float32]]
BY_REACH = ("flow", "erk", "magnitude", "random")
"""Kinds, from the one that leaves most ways through a network to the one that leaves fewest."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Pools of several kinds as one: candidates are numbered through."""

    pools: Mapping[str, CandidatePool]

    @property
    def kinds(self) -> list[str]:
        """The kind of each candidate."""
        return [kind for kind, pool in self.pools.items() for _ in range(len(pool))]

    @property
    def counts(self) -> Counts:
        """Kept weights by candidate and layer."""
        return np.concatenate([pool.counts for pool in self.pools.values()])

    @property
    def densities(self) -> list[float]:
        """Total density of each candidate."""
        return [density for pool in self.pools.values() for density in pool.densities]

    def __getitem__(self, candidate: int) -> Theta:
        for pool in self.pools.values():
            if candidate < len(pool):
                return pool[candidate]
            candidate -= len(pool)
        raise IndexError("there is no such candidate")


def shared_out(kinds: Sequence[str], size: int) -> dict[str, int]:
    """How many candidates of each kind make a pool of a size; the first get what is left over.

    >>> shared_out(("flow", "erk", "random"), 11)
    {'flow': 4, 'erk': 4, 'random': 3}
    """
    return {kind: (size + len(kinds) - 1 - n) // len(kinds) for n, kind in enumerate(kinds)}


def plain_counts(method: Method, kind: str, param_spec: ParamSpec) -> Counts:
    """The layer counts that the candidates of a kind are drawn around."""
    config = method.config
    if kind == "erk":
        return erdos_renyi_kernel(param_spec, config.density)
    if kind != "flow":
        return method.layer_counts(param_spec)
    if method.flow is None:
        raise FedTinyError("candidates of kind 'flow' need the network, which is not known here")
    return method.flow.counts(config.density, config.pruning.flow_beta, config.pruning.iterations)


def candidate_counts(method: Method, kind: str, size: int, param_spec: ParamSpec) -> Counts:
    """Noise around a kind's layer counts; under a budget of FLOPs no candidate takes more."""
    config = method.config
    paper = kind == "magnitude"
    draw = generator(config.seed, "candidates" if paper else f"candidates {kind}")
    even = kind in ("magnitude", "random") and config.pruning.budgets not in ("erk", "flow")
    return uniform_noise(
        param_spec,
        config.density,
        size,
        draw,
        around=None if even else plain_counts(method, kind, param_spec),
        uses=method.flow.uses if config.flops_budget and method.flow else None,
    )


def cut_pool(method: Method, kind: str, size: int, server: Server) -> CandidatePool:
    """The candidates of a kind: cuts of the server's model, in the order of the kind."""
    counts = candidate_counts(method, kind, size, server.param_spec)
    return CandidatePool.cut(server.theta, counts, ORDERS[kind](method, server))


def _by_magnitude(method: Method, server: Server) -> None:
    return None


def _by_flow(method: Method, server: Server) -> Scores:
    public = server.public
    if public is None:
        raise FedTinyError("candidates of kind 'flow' need a public set on the server")
    return pruning_order(
        server.theta,
        public.synaptic_flow,
        method.config.density,
        iterations=method.config.pruning.iterations,
        budgets=plain_counts(method, "flow", server.param_spec),
    )


def _at_random(method: Method, server: Server) -> Scores:
    draw = generator(method.config.seed, "random candidates")
    return {layer: draw.random(size) for layer, size in server.param_spec.sizes.items()}


ORDERS: dict[str, Callable[[Method, Server], Scores | None]] = {
    "magnitude": _by_magnitude,
    "erk": _by_magnitude,
    "flow": _by_flow,
    "random": _at_random,
}
"""By kind, the scores by which a layer's weights are kept; None stands for their magnitude."""


def asked(
    server: Server, verb: Verb, pool: CandidatePool, statistics: Statistics | None = None
) -> Statistics:
    """What enough devices measure of a pool."""
    arrays = pool_arrays(pool.counts, statistics, pool.ranks)
    outcome = server.ask("select", (verb,), theta=pool.theta, arrays=arrays)
    return require_enough(server, outcome).arrays


@dataclass(frozen=True)
class Choice:
    """The candidate taken, and those whose losses cannot be told from the lowest."""

    candidate: int
    tied: list[int]
    rule: str


def choose(
    server: Server, candidates: Candidates, losses: NDArray[np.float32], tolerance: float
) -> Choice:
    """The candidate of lowest loss; of several within a tolerance of it, the best connected one.

    That is the one with the most weights that carry something of the image to the output or,
    where the network's graph is not known, that of the kind that leaves most; then the lower loss.
    """
    best = int(np.argmin(losses))
    tied = [int(c) for c in np.flatnonzero(losses <= losses[best] + tolerance)]
    if not tolerance or len(tied) == 1:
        return Choice(best, [best], "lowest loss")
    graph = server.public.graph if server.public else None
    if graph is None:
        kinds = candidates.kinds
        worth = {c: -BY_REACH.index(kinds[c]) for c in tied}
        return Choice(_best(tied, worth, losses), tied, "kind")
    worth = {c: sum(candidates[c].mask.reachability(graph).counts.values()) for c in tied}
    return Choice(_best(tied, worth, losses), tied, "most useful weights")


def _best(tied: Sequence[int], worth: Mapping[int, int], losses: NDArray[np.float32]) -> int:
    return max(tied, key=lambda c: (worth[c], -float(losses[c]), -c))


def record(
    candidates: Candidates, losses: NDArray[np.float32], choice: Choice, tolerance: float
) -> dict[str, Any]:
    """What a reader should know of a selection, as plain JSON."""
    (first, *_) = candidates.pools.values()
    found = {
        "chosen": choice.candidate,
        "losses": [float(loss) for loss in losses],
        "densities": candidates.densities,
        "layer_counts": candidates.counts.tolist(),
        "layers": list(first.theta.param_spec.prunable),
    }
    if list(candidates.pools) != ["magnitude"]:
        found["kinds"] = candidates.kinds
    if tolerance:
        found |= {"tolerance": tolerance, "tied": choice.tied, "rule": choice.rule}
    return found
