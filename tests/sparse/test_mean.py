"""The one mean: weighted, streaming, in float64, missing entries of a sparse vector zero."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedtiny.sparse.mean import WeightedMean
from fedtiny.sparse.vector import SparseVector

from .strategies import sparse_vectors

SIZE = 8
WEIGHTS = st.integers(1, 5000)
ARRAYS = hnp.arrays(np.float32, (2, 3), elements=st.floats(-1e6, 1e6, width=32))


def mean_of(values, weights, name="x"):
    mean = WeightedMean()
    for value, weight in zip(values, weights, strict=True):
        mean.add({name: value}, weight)
    return mean.result()[name]


def sparse(values):
    """A vector of four, by position."""
    return SparseVector(4, np.array([*values], np.int32), np.array([*values.values()], "f4"))


def test_batch_norm_statistics_are_those_of_all_devices_and_not_of_the_last():
    means = [np.array([4.0, 0.0]), np.array([8.0, 4.0])]
    variances = [np.array([1.0, 1.0]), np.array([1.0, 9.0])]
    mean = WeightedMean()
    for weight, statistics in zip((1, 3), zip(means, variances, strict=True), strict=True):
        mean.add(dict(zip(("running_mean", "running_var"), statistics, strict=True)), weight)
    result = {name: values.tolist() for name, values in mean.result().items()}
    assert result == {"running_mean": [7, 3], "running_var": [1, 7]}


@given(st.lists(st.tuples(ARRAYS, WEIGHTS), min_size=1, max_size=6))
def test_the_mean_is_numpy_s(replies):
    values, weights = zip(*replies, strict=True)
    result = mean_of(values, weights)
    expected = np.average(np.array(values, np.float64), axis=0, weights=weights)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


@given(st.lists(st.tuples(sparse_vectors(SIZE), WEIGHTS), min_size=1, max_size=6))
def test_a_missing_entry_is_zero(replies):
    vectors, weights = zip(*replies, strict=True)
    result = mean_of(vectors, weights)
    expected = np.average([vector.dense() for vector in vectors], axis=0, weights=weights)
    np.testing.assert_allclose(result.dense(), expected, rtol=1e-6, atol=1e-6)
    assert set(result.indices.tolist()) == {i for vector in vectors for i in vector.indices}
    assert (result.indices.dtype, result.values.dtype) == (np.int32, np.float32)


def test_a_sparse_mean_checked_by_hand():
    result = mean_of([sparse({0: 3, 2: 1}), sparse({2: 4, 3: -6})], [1, 2])
    assert result.indices.tolist() == [0, 2, 3]
    assert result.values.tolist() == [1, 3, -4]


@given(st.lists(st.tuples(ARRAYS, WEIGHTS), min_size=1, max_size=6))
def test_the_outcome_is_fixed_to_the_bit_by_the_order_of_adding(replies):
    total, *others = (value.astype(np.float64) * share for value, share in replies)
    for other in others:
        total += other
    expected = (total / sum(share for _, share in replies)).astype(np.float32)
    assert mean_of(*zip(*replies, strict=True)).tobytes() == expected.tobytes()


@given(st.lists(st.tuples(sparse_vectors(SIZE), WEIGHTS), min_size=1, max_size=6))
def test_sparse_and_dense_agree_to_the_bit(replies):
    vectors, weights = zip(*replies, strict=True)
    dense = mean_of([vector.dense() for vector in vectors], weights)
    assert mean_of(vectors, weights).dense().tolist() == dense.tolist()


def mean_by_hand(form, values, weight):
    """The mean of single numbers that all weigh the same, as dense or as sparse vectors."""
    forms = {
        "dense": lambda value: np.array([value], np.float32),
        "sparse": lambda v: sparse({0: v}),
    }
    result = mean_of([forms[form](value) for value in values], [weight] * len(values))
    return float(result[0] if form == "dense" else result.values[0])


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_sums_and_products_are_in_float64(form):
    assert float(np.float32(2**24) + np.float32(1)) == 2**24  # what float32 would lose
    assert mean_by_hand(form, [2**24, 1, 1, 1, 1], weight=1) == (2**24 + 4) / 5
    assert float(np.float32(2**24 - 1) * np.float32(3)) != 3 * (2**24 - 1)
    assert mean_by_hand(form, [2**24 - 1, 2 - 2**24], weight=3) == 0.5


def test_the_mean_can_be_read_between_two_devices():
    mean = WeightedMean()
    mean.add({"x": np.array([2.0])}, 1)
    first = mean.result()["x"]
    mean.add({"x": np.array([4.0])}, 1)
    assert (first[0], mean.result()["x"][0], mean.weight) == (2, 3, 2)


def test_scalars_and_whole_numbers_can_be_averaged():
    assert mean_of([np.array(1), np.array(2)], [1, 1]) == 1.5
    assert mean_of([np.float64(0.5), np.float64(1.0)], [1, 1]) == 0.75


def test_the_mean_keeps_no_hold_on_what_it_was_given():
    mean, given = WeightedMean(), np.array([1.0])
    mean.add({"x": given}, 1)
    given[0] = 9
    assert mean.result()["x"][0] == 1


@pytest.mark.parametrize("weight", [0, -1, np.nan, np.inf])
def test_a_weight_must_be_above_zero_and_finite(weight):
    with pytest.raises(ValueError, match="a weight must be above zero and finite"):
        WeightedMean().add({"x": np.ones(1)}, weight)


@pytest.mark.parametrize("names", [[], ["x"], ["x", "y", "z"], ["x", "z"]])
def test_every_device_gives_the_same_names(names):
    mean = WeightedMean()
    mean.add({"x": np.ones(1), "y": np.ones(1)}, 1)
    with pytest.raises(ValueError, match="every device must give the same values"):
        mean.add({name: np.ones(1) for name in names}, 1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.ones(2), np.ones(3)),
        (np.ones(2), np.ones(1)),
        (np.ones((2, 1)), np.ones(2)),
        (np.ones(4), sparse({0: 1})),
        (sparse({0: 1}), np.ones(4)),
        (sparse({0: 1}), SparseVector(5, np.array([0], np.int32), np.ones(1, np.float32))),
    ],
)
def test_every_device_gives_the_same_shapes(one, other):
    with pytest.raises(ValueError, match="the same values in the same shapes"):
        mean_of([one, other], [1, 1])


def test_a_refused_device_leaves_no_trace():
    mean = WeightedMean()
    mean.add({"x": np.ones(1), "y": np.ones(1)}, 1)
    with pytest.raises(ValueError, match="the same values in the same shapes"):
        mean.add({"x": np.zeros(1), "y": np.zeros(2)}, 1)
    assert mean.weight == 1
    mean.add({"x": np.full(1, 3), "y": np.full(1, 3)}, 1)
    assert {name: value.tolist() for name, value in mean.result().items()} == {"x": [2], "y": [2]}


def test_a_first_device_that_gives_nothing_counts_as_a_device():
    mean = WeightedMean()
    mean.add({}, 1)
    with pytest.raises(ValueError, match="every device must give the same values"):
        mean.add({"x": np.ones(1)}, 1)


def test_many_sparse_vectors_are_summed_in_their_order_to_the_bit():
    draw, size = np.random.default_rng(0), 500
    mean, sums, weights = WeightedMean(), np.zeros(size), 0
    for _ in range(60):
        own = np.sort(draw.choice(size, draw.integers(1, 30), replace=False)).astype(np.int32)
        values, weight = draw.standard_normal(len(own)).astype(np.float32), int(draw.integers(1, 9))
        mean.add({"x": SparseVector(size, own, values)}, weight)
        sums[own] += values.astype(np.float64) * weight
        weights += weight
    found = mean.sparse()["x"]
    assert found.values.tobytes() == (sums[found.indices] / weights).astype(np.float32).tobytes()
    assert not np.delete(sums, found.indices).any()
