"""Pruning by any score, in one shot or in many small steps."""

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError
from fedtiny.sparse.candidates import Scores as Scores
from fedtiny.sparse.densities import Counts, budget, on_the_way, uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import highest

Budgets = Literal["uniform", "global"] | Counts
"""The same density in every layer, one threshold for all, or so many weights of each layer."""


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
) -> Iterator[tuple[Theta, Scores, Theta]]:
    """Every step: the model before it, its scores, and the model after it."""
    for step in range(1, iterations + 1):
        share, now, scores = step / iterations, budgets, score(theta)
        if not isinstance(now, str):
            now = on_the_way(theta.param_spec, now, share)
        after = prune_by_scores(theta, scores, density**share, now)
        yield theta, scores, after
        theta = after


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
    order = {layer: np.zeros(theta.mask.kept(layer)) for layer in theta.mask}
    first = last = theta
    for step, (before, scores, after) in enumerate(
        _steps(theta, score, density, iterations, budgets)
    ):
        for layer in order:
            gone = ~np.isin(before.mask.indices(layer), after.mask.indices(layer))
            _note(order[layer], first.mask, before.mask, layer, scores, gone, step)
        last = after
    scores = score(last)
    for layer in order:
        every = np.ones(last.mask.kept(layer), dtype=np.bool_)
        _note(order[layer], first.mask, last.mask, layer, scores, every, iterations)
    return order


def _note(
    order: NDArray[np.floating],
    first: Mask,
    mask: Mask,
    layer: str,
    scores: Scores,
    gone: NDArray[np.bool_],
    step: int,
) -> None:
    """Put down the step in which some weights of a layer go, and their order in it."""
    values = np.asarray(scores[layer]).reshape(-1)[gone]
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    places = np.searchsorted(first.indices(layer), mask.indices(layer)[gone])
    order[places] = step + ranks / max(1, len(ranks))


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


def _global_counts(held: Scores, most: int) -> Counts:
    """How many of each layer are among the highest of all, when every layer keeps its best."""
    best = {layer: np.array([values.argmax()]) for layer, values in held.items()}
    rest = np.concatenate([np.delete(values, best[layer]) for layer, values in held.items()])
    owner = np.repeat(np.arange(len(held)), [len(values) - 1 for values in held.values()])
    chosen = owner[highest(rest, most - len(held))]
    return (1 + np.bincount(chosen, minlength=len(held))).astype(np.int32)
