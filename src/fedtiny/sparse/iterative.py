"""Pruning by any score, in one shot or in many small steps."""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError
from fedtiny.sparse.candidates import Scores as Scores
from fedtiny.sparse.densities import Counts, budget, on_the_way, uniform
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import highest

Budgets = Literal["uniform", "global"] | Counts
"""The same density in every layer, one threshold for all, or so many weights of each layer."""
Chosen = dict[str, NDArray[np.intp]]
"""By layer, places among its kept weights, in order."""


def prune_iteratively(
    theta: Theta,
    score: Callable[[Theta], Scores],
    density: float,
    *,
    iterations: int = 1,
    budgets: Budgets = "uniform",
) -> Theta:
    """Keep the weights of highest score, scored anew after each step.

    The density falls exponentially: d^(1/n), d^(2/n), ..., d. A pruned weight never comes back.
    """
    for _, _, after in _steps(theta, score, density, iterations, budgets):
        theta = after
    return theta


def _steps(
    theta: Theta,
    score: Callable[[Theta], Scores],
    density: float,
    iterations: int,
    budgets: Budgets,
) -> Iterator[tuple[Scores, Chosen, Theta]]:
    """Every step: the scores of the weights before it, which of these stay, and the model then."""
    for step in range(1, iterations + 1):
        share, now, scores = step / iterations, budgets, score(theta)
        if not isinstance(now, str):
            now = on_the_way(theta.param_spec, now, share)
        chosen = _choose(theta, scores, density**share, now)
        theta = theta.pruned_to(chosen)
        yield scores, chosen, theta


def pruning_order(
    theta: Theta,
    score: Callable[[Theta], Scores],
    density: float,
    *,
    iterations: int = 1,
    budgets: Budgets = "uniform",
) -> Scores:
    """How long `prune_iteratively` keeps each weight: the lowest of a layer goes first.

    Weights that go in one step, or stay to the end, are in the order of their last score.
    """
    order = {layer: np.zeros(count) for layer, count in theta.mask.counts.items()}
    left = {layer: np.arange(len(own)) for layer, own in order.items()}
    steps = _steps(theta, score, density, iterations, budgets)
    for step, (scores, chosen, after) in enumerate(steps):
        theta = after
        for layer, own in order.items():
            gone = np.ones(len(left[layer]), dtype=np.bool_)
            gone[chosen[layer]] = False
            values = np.asarray(scores[layer]).reshape(-1)[gone]
            own[left[layer][gone]] = step + _ranks(values)
            left[layer] = left[layer][chosen[layer]]
    scores = score(theta)
    for layer, own in order.items():
        values = np.asarray(scores[layer]).reshape(-1)
        own[left[layer]] = iterations + _ranks(values)
    return order


def _ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """The place of each value in their order as a share of their number, equal ones in turn.

    >>> _ranks(np.array([0.5, 0.1, 0.5, 0.7]))
    array([0.25, 0.  , 0.5 , 0.75])
    """
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks / max(1, len(values))


def prune_by_scores(theta: Theta, scores: Scores, density: float, budgets: Budgets) -> Theta:
    """Keep the kept weights of highest score, within a density or to given layer counts."""
    return theta.pruned_to(_choose(theta, scores, density, budgets))


def _choose(theta: Theta, scores: Scores, density: float, budgets: Budgets) -> Chosen:
    """Which of the kept weights of each layer have the highest scores."""
    held = {layer: np.asarray(scores[layer]).reshape(-1) for layer in theta.mask}
    for layer, count in theta.mask.counts.items():
        if len(held[layer]) != count:
            raise FedTinyError(
                f"layer '{layer}' has {count} kept weights, but {len(held[layer])} scores are given"
            )
    if not all(np.isfinite(values).all() for values in held.values()):
        raise FedTinyError("a score of some weight is not finite, so nothing can be pruned by it")
    if not isinstance(budgets, str):
        counts = budgets
    elif budgets == "uniform":
        counts = uniform(theta.param_spec, density)
    else:
        counts = _global_counts(held, budget(theta.param_spec, density))
    return {
        layer: highest(held[layer], int(count))
        for layer, count in zip(theta.mask, counts, strict=True)
    }


def _global_counts(held: Scores, most: int) -> Counts:
    """How many of each layer are among the highest of all, when every layer keeps its best."""
    best = {layer: np.array([values.argmax()]) for layer, values in held.items()}
    rest = np.concatenate([np.delete(values, best[layer]) for layer, values in held.items()])
    owner = np.repeat(np.arange(len(held)), [len(values) - 1 for values in held.values()])
    chosen = owner[highest(rest, most - len(held))]
    return (1 + np.bincount(chosen, minlength=len(held))).astype(np.int32)
