"""Pruning by any score: how fast the density falls, what is kept, and that no layer empties."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.sparse.densities import budget, uniform
from fedtiny.sparse.iterative import prune_by_scores, prune_iteratively, pruning_order
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

from .strategies import anatomy_of, dense_thetas, levels, resnet18

SCOPES = ("uniform", "global")
every_scope = pytest.mark.parametrize("scope", SCOPES)


def dense(param_spec):
    """A model whose weights are 1, 2, 3 and so on."""
    mask = Mask.full(param_spec)
    return Theta(mask, np.arange(1, length(mask) + 1, dtype=np.float32))


def flat(**sizes):
    return dense(anatomy_of({layer: (size,) for layer, size in sizes.items()}))


def magnitudes(theta):
    return {layer: np.abs(theta.kept(layer)) for layer in theta.mask}


def kept(theta):
    return {layer: theta.mask.indices(layer).tolist() for layer in theta.mask}


def pruned(scores, density, scope):
    """The kept positions of layers with these scores."""
    theta = flat(**{layer: len(values) for layer, values in scores.items()})
    arrays = {layer: np.array(values, np.float64) for layer, values in scores.items()}
    return kept(prune_by_scores(theta, arrays, density, scope))


# The schedule


class Scorer:
    """Scores by magnitude and notes what it was shown."""

    def __init__(self):
        self.seen = []

    def __call__(self, theta):
        self.seen.append(theta.mask.count)
        return magnitudes(theta)


@every_scope
@pytest.mark.parametrize(("density", "steps"), [(0.001, 3), (0.01, 4), (0.3, 7), (0.05, 1)])
def test_the_density_falls_by_the_same_factor_at_each_step(scope, density, steps):
    scorer = Scorer()
    theta = prune_iteratively(flat(a=100_000), scorer, density, iterations=steps, budgets=scope)
    expected = [int(100_000 * density ** (t / steps) + 1e-6) for t in range(steps + 1)]
    assert [*scorer.seen, theta.mask.count] == expected


def test_three_steps_to_a_thousandth_by_hand():
    scorer = Scorer()
    theta = prune_iteratively(flat(a=1000), scorer, 0.001, iterations=3)
    assert [*scorer.seen, theta.mask.count] == [1000, 100, 10, 1]


@every_scope
def test_scores_are_measured_anew_and_the_pruned_never_come_back(scope):
    """The first step keeps the largest; by then a change of mind comes too late."""
    minds = iter([np.array([1, 2, 3, 4.0]), np.array([9, 8, 1, 2.0])])

    def scores(theta):
        return {"a": next(minds)[theta.mask.indices("a")]}

    theta = prune_iteratively(flat(a=4), scores, 0.25, iterations=2, budgets=scope)
    assert kept(theta) == {"a": [3]}


@every_scope
@given(theta=dense_thetas(), density=st.floats(0.05, 1), steps=st.integers(1, 5))
def test_the_outcome_is_within_the_density_and_no_layer_is_empty(scope, theta, density, steps):
    assume(density * theta.param_spec.prunable_count >= len(theta.param_spec.sizes))
    result = prune_iteratively(theta, magnitudes, density, iterations=steps, budgets=scope)
    assert result.mask.count <= budget(theta.param_spec, density)
    assert result.mask.count > budget(theta.param_spec, density) - len(theta.param_spec.sizes)
    assert min(result.mask.counts.values()) >= 1
    for layer in result.mask:
        assert np.array_equal(result.kept(layer), theta.kept(layer)[result.mask.indices(layer)])
    assert np.array_equal(result.vector[result.mask.count :], theta.vector[theta.mask.count :])


@given(theta=dense_thetas(), density=st.floats(0.05, 1))
def test_magnitude_in_many_steps_is_magnitude_in_one(theta, density):
    """A score that does not change gives the same mask, however many steps lead there."""
    assume(density * theta.param_spec.prunable_count >= len(theta.param_spec.sizes))
    one, many = (
        prune_iteratively(theta, magnitudes, density, iterations=steps, budgets="global")
        for steps in (1, 4)
    )
    assert one.mask == many.mask


# The same density in every layer


def test_uniform_scope_does_not_compare_layers():
    scores = {"a": [100, 101, 102, 103], "b": [1, 4, 2, 3]}
    assert pruned(scores, 0.5, "uniform") == {"a": [2, 3], "b": [1, 3]}


def test_uniform_scope_gives_every_layer_of_resnet18_the_density():
    theta = dense(resnet18())
    result = prune_iteratively(theta, magnitudes, 0.001, iterations=5)
    assert list(result.mask.counts.values()) == uniform(theta.param_spec, 0.001).tolist()


def test_a_layer_whose_scores_are_all_zero_keeps_its_share():
    scores = {"a": [0, 0, 0, 0], "b": [5, 6, 7, 8]}
    assert pruned(scores, 0.5, "uniform") == {"a": [0, 1], "b": [2, 3]}


# One threshold for all


def test_global_scope_by_hand():
    """Of six weights three stay: the best of each layer, then the highest of the rest."""
    scores = {"a": [9, 8, 7, 1], "b": [2, 3]}
    assert pruned(scores, 0.5, "global") == {"a": [0, 1], "b": [1]}
    assert pruned(scores, 4 / 6, "global") == {"a": [0, 1, 2], "b": [1]}
    assert pruned(scores, 5 / 6, "global") == {"a": [0, 1, 2], "b": [0, 1]}


def test_global_scope_leaves_a_worthless_layer_one_weight():
    scores = {"a": [5, 6, 7, 8], "b": [0, 0, 0, 0], "c": [1, 3, 2, 0]}
    assert pruned(scores, 0.25, "global") == {"a": [3], "b": [0], "c": [1]}
    assert pruned(scores, 0.5, "global") == {"a": [0, 1, 2, 3], "b": [0], "c": [1]}


def test_negative_scores_rank_by_sign_not_by_size():
    """GraSP's scores have signs; the highest stay."""
    scores = {"a": [-9, -1, 2], "b": [-3, 0.5, -8]}
    assert pruned(scores, 0.5, "global") == {"a": [1, 2], "b": [1]}
    assert pruned(scores, 4 / 6, "global") == {"a": [1, 2], "b": [0, 1]}
    assert pruned(scores, 4 / 6, "uniform") == {"a": [1, 2], "b": [0, 1]}


@given(theta=dense_thetas(), density=st.floats(0.05, 1), data=st.data())
def test_global_scope_is_one_threshold(theta, density, data):
    """But for the best weight of a layer, nothing kept scores below anything dropped."""
    assume(density * theta.param_spec.prunable_count >= len(theta.param_spec.sizes))
    scores = {layer: data.draw(levels(size)) for layer, size in theta.param_spec.sizes.items()}
    mask = prune_by_scores(theta, scores, density, "global").mask
    assert mask.count == budget(theta.param_spec, density)
    within, without = [], []
    for layer, values in scores.items():
        held = np.sort(values[mask.indices(layer)])
        assert held[-1] == values.max()
        within.extend(held[:-1])
        without.extend(np.delete(values, mask.indices(layer)))
    assert min(within, default=np.inf) >= max(without, default=-np.inf)


# Refusals


def test_scores_that_do_not_fit_are_refused():
    theta = prune_by_scores(flat(a=4, b=4), magnitudes(flat(a=4, b=4)), 0.5, "uniform")
    with pytest.raises(FedTinyError, match="layer 'a' has 2 kept weights, but 4 scores are given"):
        prune_by_scores(theta, magnitudes(flat(a=4, b=4)), 0.25, "uniform")


@every_scope
def test_a_density_that_would_empty_a_layer_is_refused(scope):
    theta = flat(a=10, b=10, c=10)
    with pytest.raises(ConfigError, match="leaves 2 weights for 3 prunable layers"):
        prune_iteratively(theta, magnitudes, 0.09, iterations=10, budgets=scope)


@every_scope
def test_a_weight_a_layer_is_the_least(scope):
    result = prune_iteratively(flat(a=10, b=10, c=10), magnitudes, 0.1, iterations=9, budgets=scope)
    assert kept(result) == {"a": [9], "b": [9], "c": [9]}


# The order in which weights go


def test_an_order_by_hand():
    """Half go in the first of two steps, by its scores; the second has scores of its own."""
    theta, seen = flat(a=8), []

    def score(now):
        seen.append(now.mask.count)
        turned = -1 if len(seen) == 2 else 1  # what was best is worst in the second step
        return {"a": turned * now.kept("a").astype(float)}

    order = pruning_order(theta, score, 0.25, iterations=2)["a"]
    assert seen == [8, 4, 2]
    assert np.argsort(order).tolist() == [0, 1, 2, 3, 7, 6, 4, 5]


@every_scope
def test_the_last_to_go_are_those_that_pruning_keeps(scope):
    theta = flat(a=50, b=100, c=7)

    def score(now):
        return {n: np.sin(now.mask.count * now.kept(n).astype(float)) ** 2 for n in now.mask}

    order = pruning_order(theta, score, 0.1, iterations=5, budgets=scope)
    found = prune_iteratively(theta, score, 0.1, iterations=5, budgets=scope)
    for layer, count in found.mask.counts.items():
        last = np.sort(np.argsort(order[layer])[-count:])
        assert last.tolist() == found.mask.indices(layer).tolist()
        assert len(np.unique(order[layer])) == len(order[layer])
