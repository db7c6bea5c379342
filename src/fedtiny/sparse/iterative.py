"""Pruning by any score, in one shot or in many small steps."""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError
from fedtiny.sparse.densities import Counts, budget, on_the_way, uniform
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import highest

Budgets = Literal["uniform", "global"] | Counts
"""The same density in every layer, one threshold for all, or so many weights of each layer."""
Scores = Mapping[str, NDArray[np.floating]]
"""By layer, one score for each kept weight, in order of position."""


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
    for step in range(1, iterations + 1):
        share, now = step / iterations, budgets
        if not isinstance(now, str):
            now = on_the_way(theta.param_spec, now, share)
        theta = prune_by_scores(theta, score(theta), density**share, now)
    return theta


def prune_by_scores(theta: Theta, scores: Scores, density: float, budgets: Budgets) -> Theta:
    """Keep the kept weights of highest score, within a density or to given layer counts."""
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
    chosen = {
        layer: highest(held[layer], int(count))
        for layer, count in zip(theta.mask, counts, strict=True)
    }
    return theta.pruned_to(chosen)


def _global_counts(held: Mapping[str, NDArray[np.floating]], most: int) -> Counts:
    """How many of each layer are among the highest of all, when every layer keeps its best."""
    best = {layer: np.array([values.argmax()]) for layer, values in held.items()}
    rest = np.concatenate([np.delete(values, best[layer]) for layer, values in held.items()])
    owner = np.repeat(np.arange(len(held)), [len(values) - 1 for values in held.values()])
    chosen = owner[highest(rest, most - len(held))]
    return (1 + np.bincount(chosen, minlength=len(held))).astype(np.int32)
