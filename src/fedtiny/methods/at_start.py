"""Pruning at the start, on the server: what several methods share."""

from collections.abc import Callable

from fedtiny.errors import FedTinyError
from fedtiny.federation.method import Method
from fedtiny.federation.public import PublicSet
from fedtiny.federation.server import Server
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.iterative import Budgets, Scores, prune_iteratively
from fedtiny.sparse.theta import Theta

GLOBAL = (*Method.budgets, "global")
"""The budgets of a method that prunes by a score of its own."""


def prune_to_budgets(method: Method, server: Server) -> None:
    """Prune the server's model by magnitude, to what each layer may keep."""
    server.theta = prune_by_magnitude(server.theta, method.layer_counts(server.param_spec))


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
