"""Pruning at the start: what several methods share."""

from collections.abc import Callable

from fedtiny.errors import FedTinyError, plural
from fedtiny.federation.method import Method
from fedtiny.federation.public import PublicSet
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.randomness import generator
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.iterative import Budgets, Scores, prune_by_scores, prune_iteratively
from fedtiny.sparse.theta import Theta

GLOBAL = (*Method.budgets, "global")
"""The budgets of a method that prunes by a score of its own."""


def prune_to_budgets(method: Method, server: Server) -> None:
    """Prune the server's model by magnitude, to what each layer may keep."""
    server.theta = prune_by_magnitude(server.theta, method.layer_counts(server.param_spec))


def prune_at_random(method: Method, server: Server) -> None:
    """Prune the server's model at random, to what each layer may keep."""
    draw = generator(server.config.seed, "random mask")
    scores = {layer: draw.random(size) for layer, size in server.param_spec.sizes.items()}
    counts = method.layer_counts(server.param_spec)
    server.theta = prune_by_scores(server.theta, scores, server.config.density, counts)


def prune_at_start(
    method: Method,
    server: Server,
    score: Callable[[PublicSet, Theta], Scores],
    iterations: int,
) -> None:
    """Prune the server's model by a score measured on the public set."""
    public = server.public
    if public is None:
        raise FedTinyError(f"method '{method.name}' needs a public set on the server")
    server.theta = prune_iteratively(
        server.theta,
        lambda theta: score(public, theta),
        server.config.density,
        iterations=iterations,
        budgets=_budgets(method, server),
    )


def _budgets(method: Method, server: Server) -> Budgets:
    """One threshold and uniform densities are worked out anew at every step."""
    chosen = server.config.pruning.budgets
    if chosen == "uniform" or chosen == "global":
        return chosen
    return method.layer_counts(server.param_spec)


def require_enough(server: Server, outcome: Outcome) -> Outcome:
    """What came of a question before the first round, if enough devices answered it.

    If too few did: simulated devices fail again when a run goes on; real ones may be back.
    """
    if server.enough(outcome):
        return outcome
    fleet, answered = server.config.fleet, len(outcome.answered)
    trouble = (
        f"only {plural(answered, 'device')} answered the selection, fewer than --fleet.min-replies "
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
