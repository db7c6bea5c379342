"""Candidates of several kinds: which weights each keeps, and how many of each layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedtiny.errors import FedTinyError
from fedtiny.federation.server import Server
from fedtiny.models.param_spec import ParamSpec
from fedtiny.randomness import generator
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.densities import Counts, erdos_renyi_kernel, uniform_noise
from fedtiny.sparse.iterative import Scores, pruning_order
from fedtiny.sparse.theta import Theta

if TYPE_CHECKING:
    from fedtiny.methods.fedtiny import FedTiny

ESTIMATED = (
    "costs of flow's layers are estimated by ERK's, since measuring flow takes minutes; budgets "
    "`flow` or a budget of FLOPs measure them"
)


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

    In a pool that is too small for all kinds, the last ones have none and are left out.

    >>> shared_out(("flow", "erk", "random"), 11)
    {'flow': 4, 'erk': 4, 'random': 3}
    >>> shared_out(("flow", "erk", "random"), 2)
    {'flow': 1, 'erk': 1}
    """
    return {kind: -(-(size - n) // len(kinds)) for n, kind in enumerate(kinds[:size])}


def plain_counts(method: "FedTiny", kind: str, param_spec: ParamSpec) -> Counts:
    """The layer counts that the candidates of a kind are drawn around."""
    config = method.config
    if kind == "erk":
        return erdos_renyi_kernel(param_spec, config.density)
    if not flow_sets_counts(method, kind):
        return method.layer_counts(param_spec)
    if method.flow is None:
        raise FedTinyError("candidates of kind 'flow' need the network, which is not known here")
    return method.flow.counts(config.density, config.pruning.flow_beta, config.pruning.iterations)


def costed_counts(method: "FedTiny", kind: str, param_spec: ParamSpec) -> Counts:
    """The same for the cost model, which takes ERK's for flow's: measuring flow takes minutes.

    It is measured where the layer budgets ask for it anyway, or where FLOPs must be exact.
    """
    return plain_counts(method, "erk" if _is_estimated(method, kind) else kind, param_spec)


def cost_remarks(method: "FedTiny", kinds: Sequence[str]) -> tuple[str, ...]:
    """Where the cost model takes ERK's layer counts for flow's."""
    if not any(_is_estimated(method, kind) for kind in kinds):
        return ()
    return (ESTIMATED,)


def _is_estimated(method: "FedTiny", kind: str) -> bool:
    config = method.config
    exact = config.pruning.budgets == "flow" or config.flops_budget is not None
    return flow_sets_counts(method, kind) and not exact


def flow_sets_counts(method: "FedTiny", kind: str) -> bool:
    """Whether a kind has the layer counts of flow; as a method's own kind it can have others."""
    if kind != "flow":
        return False
    own = kind in method.pool.split(",")
    return not (own and method.config.pruning.budgets in ("uniform", "erk"))


def candidate_counts(
    method: "FedTiny",
    kind: str,
    size: int,
    param_spec: ParamSpec,
    plain: Callable[["FedTiny", str, ParamSpec], Counts] = plain_counts,
) -> Counts:
    """Noise around a kind's layer counts; under a budget of FLOPs no candidate takes more."""
    config = method.config
    paper = kind == "magnitude"
    draw = generator(config.seed, "candidates" if paper else f"candidates {kind}")
    floors = flow_sets_counts(method, kind)
    even = kind in ("magnitude", "random") and config.pruning.budgets not in ("erk", "flow")
    return uniform_noise(
        param_spec,
        config.density,
        size,
        draw,
        around=None if even else plain(method, kind, param_spec),
        at_least=method.flow.least(config.density) if floors and method.flow else 1,
        uses=method.flow.uses if config.flops_budget and method.flow else None,
    )


def cut_pool(method: "FedTiny", kind: str, size: int, server: Server) -> CandidatePool:
    """The candidates of a kind: cuts of the server's model, in the order of the kind."""
    counts = candidate_counts(method, kind, size, server.param_spec)
    return CandidatePool.cut(server.theta, counts, ORDERS[kind](method, server))


def plain_cut(method: "FedTiny", kind: str, server: Server) -> Theta:
    """The one candidate of a kind whose layer counts have no noise."""
    counts = plain_counts(method, kind, server.param_spec)
    return CandidatePool.cut(server.theta, counts[None], ORDERS[kind](method, server))[0]


def _by_magnitude(method: "FedTiny", server: Server) -> None:
    return None


def _by_flow(method: "FedTiny", server: Server) -> Scores:
    public = server.public
    if public is None:
        raise FedTinyError("candidates of kind 'flow' need a public set on the server")
    normalized = method.flow is not None and method.flow.normalized
    return pruning_order(
        server.theta,
        partial(public.synaptic_flow, normalized=normalized),
        method.config.density,
        iterations=method.config.pruning.iterations,
        budgets=plain_counts(method, "flow", server.param_spec),
    )


def _at_random(method: "FedTiny", server: Server) -> Scores:
    draw = generator(method.config.seed, "random candidates")
    return {layer: draw.random(size) for layer, size in server.param_spec.sizes.items()}


ORDERS: dict[str, Callable[["FedTiny", Server], Scores | None]] = {
    "magnitude": _by_magnitude,
    "erk": _by_magnitude,
    "flow": _by_flow,
    "random": _at_random,
}
"""By kind, the scores by which a layer's weights are kept; None stands for their magnitude."""


def is_by_magnitude(kind: str) -> bool:
    """Whether candidates of a kind need no ranks to travel."""
    return ORDERS[kind] is _by_magnitude
