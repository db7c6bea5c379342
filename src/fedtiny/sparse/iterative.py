"""Pruning by any score, in one shot or in many small steps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError
from fedtiny.sparse.candidates import Scores as Scores
from fedtiny.sparse.densities import Counts, budget, uniform
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import highest

Scope = Literal["uniform", "global"]


def prune_iteratively(
    theta: Theta,
    score: Callable[[Theta], Scores],
    density: float,
    *,
    iterations: int = 1,
    scope: Scope = "uniform",
) -> Theta:
    """Keep the weights of highest score, scored anew after each step.

    The density falls exponentially: d^(1/n), d^(2/n), ..., d. A pruned weight never comes back.
    """
    for _, _, after in _steps(theta, score, density, iterations, scope):
        theta = after
    return theta


def _steps(
    theta: Theta, score: Callable[[Theta], Scores], density: float, iterations: int, scope: Scope
) -> Iterator[tuple[Theta, Scores, Theta]]:
    """Every step: the model before it, its scores, and the model after it."""
    for step in range(1, iterations + 1):
        scores = score(theta)
        after = prune_by_scores(theta, scores, density ** (step / iterations), scope)
        yield theta, scores, after
        theta = after


@dataclass(frozen=True)
class PruningOrder:
    """A model pruned in steps by a score, and the order in which its weights went.

    `wide` is the model a few steps before the end, and `scores` says of each of its kept weights
    how long it would have been kept: up to which step, and then by its last score.
    """

    theta: Theta
    wide: Theta
    scores: Scores


def pruning_order(
    theta: Theta,
    score: Callable[[Theta], Scores],
    density: float,
    *,
    iterations: int = 1,
    scope: Scope = "uniform",
    reach: float = 2.0,
) -> PruningOrder:
    """Prune as `prune_iteratively` does, and remember in which order.

    The order goes back to the last model of at least `reach` times the density.
    """
    wide = theta
    kept_for: dict[str, NDArray[np.floating]] = {}
    steps = _steps(theta, score, density, iterations, scope)
    for step, (before, scores, after) in enumerate(steps):
        theta = after
        if after.mask.density >= reach * density:
            wide = after
        else:
            _remember(kept_for, wide, before, scores, step)
    _remember(kept_for, wide, theta, score(theta), iterations)
    return PruningOrder(theta, wide, kept_for)


def _remember(
    kept_for: dict[str, NDArray[np.floating]], wide: Theta, theta: Theta, scores: Scores, step: int
) -> None:
    """Note for the weights that are left that they were kept up to this step, and their order."""
    for layer in wide.mask:
        kept = kept_for.setdefault(layer, np.zeros(wide.mask.kept(layer)))
        ranks = np.argsort(np.argsort(scores[layer].reshape(-1), kind="stable"))
        places = np.searchsorted(wide.mask.indices(layer), theta.mask.indices(layer))
        kept[places] = step + ranks / max(1, len(ranks))


def prune_by_scores(theta: Theta, scores: Scores, density: float, scope: Scope) -> Theta:
    """Keep the kept weights of highest score, within a density."""
    held = {layer: np.asarray(scores[layer]).reshape(-1) for layer in theta.mask}
    for layer, count in theta.mask.counts.items():
        if len(held[layer]) != count:
            raise FedTinyError(
                f"layer '{layer}' has {count} kept weights, but {len(held[layer])} scores are given"
            )
    if not all(np.isfinite(values).all() for values in held.values()):
        raise FedTinyError("a score of some weight is not finite, so nothing can be pruned by it")
    if scope == "uniform":
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
