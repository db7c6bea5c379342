"""One theta and a table of counts carry the whole pool."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedtiny.sparse.candidates import CandidatePool, prune_by_magnitude
from fedtiny.sparse.densities import budget, uniform_noise
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from .strategies import anatomy_of, dense_thetas, thetas

TWO_LAYERS = anatomy_of({"a": (3,), "b": (2,)}, {"bias": (1,)})
DENSE = Theta(Mask.full(TWO_LAYERS), np.array([1, -3, 2, 5, 5, 0.5], np.float32))


@st.composite
def tables(draw, theta, max_rows=4):
    """Counts by candidate and layer, each up to what the theta keeps."""
    shape = (draw(st.integers(1, max_rows)), 1)
    columns = [
        draw(hnp.arrays(np.int32, shape, elements=st.integers(0, count)))
        for count in theta.mask.counts.values()
    ]
    return np.concatenate(columns, axis=1)


def same(one, other):
    return one.mask == other.mask and one.vector.tolist() == other.vector.tolist()


def test_a_pool_checked_by_hand():
    pool = CandidatePool.cut(DENSE, np.array([[2, 1], [1, 0]], np.int32))
    assert pool.theta.vector.tolist() == [-3, 2, 5, 0.5]
    first, second = pool
    assert first.mask == Mask(TWO_LAYERS, {"a": [1, 2], "b": [0]})  # of equal fives the first
    assert first.vector.tolist() == [-3, 2, 5, 0.5]
    assert second.mask == Mask(TWO_LAYERS, {"a": [1], "b": []})
    assert second.vector.tolist() == [-3, 0.5]
    assert pool.densities == [3 / 5, 1 / 5]
    assert len(pool) == 2


@given(st.data())
def test_pruning_keeps_the_first_of_a_full_sort(data):
    theta = data.draw(thetas())
    counts = data.draw(tables(theta, max_rows=1))[0]
    pruned = prune_by_magnitude(theta, counts)
    for layer, count in zip(theta.mask, counts, strict=True):
        values = theta.tensor(layer).reshape(-1)
        order = sorted(theta.mask.indices(layer).tolist(), key=lambda i: (-abs(values[i]), i))
        assert pruned.mask.indices(layer).tolist() == sorted(order[:count])
        assert pruned.kept(layer).tolist() == values[pruned.mask.indices(layer)].tolist()
    for name in theta.param_spec.dense:
        assert pruned.tensor(name).tolist() == theta.tensor(name).tolist()


@given(st.data())
def test_a_candidate_is_the_dense_model_pruned_directly(data):
    dense = data.draw(dense_thetas())
    counts = data.draw(tables(dense))
    pool = CandidatePool.cut(dense, counts)
    for candidate, row in zip(pool, counts, strict=True):
        assert same(candidate, prune_by_magnitude(dense, row))


@given(st.data())
def test_candidates_nest_in_each_layer(data):
    dense = data.draw(dense_thetas())
    pool = CandidatePool.cut(dense, data.draw(tables(dense)))
    for layer in dense.mask:
        kept = sorted((set(c.mask.indices(layer).tolist()) for c in pool), key=len)
        assert all(less <= more for less, more in pairwise(kept))
        assert kept[-1] == set(pool.theta.mask.indices(layer).tolist())


@given(st.data())
def test_densities_are_those_of_the_candidates(data):
    dense = data.draw(dense_thetas())
    pool = CandidatePool.cut(dense, data.draw(tables(dense)))
    assert pool.densities == [candidate.mask.density for candidate in pool]
    assert len(pool) == len(list(pool)) == len(pool.densities)


def test_a_noisy_pool_stays_within_its_density():
    param_spec = anatomy_of({"a": (40, 40), "b": (20, 10, 3, 3), "c": (50, 20)})
    generator = np.random.default_rng(0)
    values = generator.normal(size=param_spec.prunable_count).astype(np.float32)
    counts = uniform_noise(param_spec, 0.05, 10, generator)
    pool = CandidatePool.cut(Theta(Mask.full(param_spec), values), counts)
    assert max(pool.densities) <= 0.05
    assert min(pool.densities) > 0.98 * 0.05
    assert max(c.mask.count for c in pool) <= budget(param_spec, 0.05)
    assert len({c.mask.version for c in pool}) == 10


@pytest.mark.parametrize(
    "counts",
    [np.array([1, 1]), np.array([[1]]), np.array([[1, 1, 1]]), np.empty((0, 2), int)],
    ids=["one row flat", "too few layers", "too many layers", "no candidate"],
)
def test_a_pool_needs_a_count_for_each_layer(counts):
    with pytest.raises(ValueError, match="one row of 2 layer counts a candidate"):
        CandidatePool(DENSE, counts)


@pytest.mark.parametrize("row", [[3, 1], [1, -1]])
def test_a_candidate_keeps_no_more_than_the_pool_carries(row):
    carried = prune_by_magnitude(DENSE, np.array([2, 2]))
    with pytest.raises(ValueError, match="more weights of a layer than the pool carries"):
        CandidatePool(carried, np.array([[2, 2], row]))


# In another order than that of magnitude


LARGE_SPEC = anatomy_of({"a": (5, 8), "b": (60,)}, {"bias": (1,)})
LARGE = Theta(Mask.full(LARGE_SPEC), np.random.default_rng(4).standard_normal(101).astype("f4"))


def test_a_pool_by_scores_keeps_those_of_highest_score():
    dense, draw = LARGE, np.random.default_rng(5)
    scores = {layer: draw.random(size) for layer, size in dense.param_spec.sizes.items()}
    most = np.array(list(dense.param_spec.sizes.values()))
    counts = np.array([most // 4, most // 2, most // 3], np.int32)
    pool = CandidatePool.cut(dense, counts, scores)
    for candidate, theta in enumerate(pool):
        for (layer, own), count in zip(scores.items(), counts[candidate], strict=True):
            best = np.sort(np.argsort(-own)[:count])
            assert np.array_equal(theta.mask.indices(layer), best)
            assert np.array_equal(theta.kept(layer), dense.kept(layer)[best])
    again = CandidatePool(pool.theta, pool.counts, pool.ranks.copy())
    assert pool.is_same(again)
    assert not pool.is_same(CandidatePool(pool.theta, pool.counts))


@pytest.mark.parametrize("broken", ["twice", "short", "range"])
def test_ranks_that_name_no_order_are_refused(broken):
    dense = LARGE
    scores = {layer: np.arange(size) for layer, size in dense.param_spec.sizes.items()}
    counts = np.array([[size // 2 for size in dense.param_spec.sizes.values()]], np.int32)
    pool = CandidatePool.cut(dense, counts, scores)
    ranks = pool.ranks.copy()
    if broken == "short":
        ranks = ranks[1:]
    else:
        ranks[0] = ranks[1] if broken == "twice" else 10**6
    with pytest.raises(ValueError, match="every place"):
        CandidatePool(pool.theta, counts, ranks)
