"""Pruning at the start: what several methods share."""

from collections.abc import Callable

from fedtiny.errors import FedTinyError
from fedtiny.federation.public import PublicSet
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.randomness import generator
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.iterative import Scores, prune_by_scores, prune_iteratively
from fedtiny.sparse.theta import Theta


def prune_uniformly(server: Server) -> None:
    """Prune the server's model by magnitude, to the same density in every layer."""
    counts = uniform(server.param_spec, server.config.density)
    server.theta = prune_by_magnitude(server.theta, counts)


def prune_at_random(server: Server) -> None:
    """Prune the server's model at random, to the same density in every layer."""
    draw = generator(server.config.seed, "random mask")
    scores = {layer: draw.random(size) for layer, size in server.param_spec.sizes.items()}
    server.theta = prune_by_scores(server.theta, scores, server.config.density, "uniform")


def prune_at_start(
    server: Server, score: Callable[[PublicSet, Theta], Scores], iterations: int
) -> None:
    """Prune the server's model by a score measured on the public set."""
    public = server.public
    if public is None:
        raise FedTinyError(f"method '{server.config.method}' needs a public set on the server")
    server.theta = prune_iteratively(
        server.theta,
        lambda theta: score(public, theta),
        server.config.density,
        iterations=iterations,
        scope=server.config.pruning.scope,
    )


def require_enough(server: Server, outcome: Outcome) -> Outcome:
    """What came of a question before round 0, if enough devices answered it.

    If too few did: simulated devices fail again when a run goes on; real ones may be back.
    """
    if server.enough(outcome):
        return outcome
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
