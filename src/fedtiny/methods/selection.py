"""What devices measure of a pool of candidates, and which of them is taken (Alg. 1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError
from fedtiny.federation.bn_statistics import Statistics, from_means
from fedtiny.federation.messages import HOPELESS_LOSS, pool_arrays
from fedtiny.federation.server import Server
from fedtiny.federation.verbs import BnStatistics, Losses, Verb
from fedtiny.methods.at_start import require_enough
from fedtiny.methods.pool import Candidates
from fedtiny.sparse.candidates import CandidatePool

SMALLEST_SHARE = 1e-8  # of one device in a mean, for a hopeless loss to show in it
BY_REACH = ("flow", "erk", "magnitude", "random")
"""Kinds, from the one that leaves most ways through a network to the one that leaves fewest."""


def measured(
    server: Server, candidates: Candidates, how: BnStatistics | None
) -> tuple[Statistics, NDArray[np.float32]]:
    """Statistics, if asked for, and losses of all candidates, each pool asked about by itself."""
    statistics, losses = [], []
    for pool in candidates.pools.values():
        statistics.append(global_statistics(server, pool, how) if how else {})
        losses.append(asked(server, Losses(), pool, statistics[-1])["losses"])
    names = statistics[0]
    joined = {name: np.concatenate([found[name] for found in statistics]) for name in names}
    return joined, finite_losses(np.concatenate(losses))


def global_statistics(server: Server, pool: CandidatePool, how: BnStatistics) -> Statistics:
    """Average the devices' batch-norm statistics (Alg. 1, lines 2 to 13)."""
    return from_means(asked(server, how, pool), how)


def finite_losses(losses: NDArray[np.float32]) -> NDArray[np.float32]:
    """The devices' averaged losses (Alg. 1, lines 14 to 28); of hopeless candidates, infinity."""
    finite = losses < HOPELESS_LOSS * SMALLEST_SHARE
    if not finite.any():
        raise FedTinyError(
            "no candidate has a finite loss; start anew with a lower --train.lr",
            retryable=False,
        )
    return np.where(finite, losses, np.inf).astype(np.float32)


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
