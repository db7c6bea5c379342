"""Means without extremes: by hand, and beside a plain NumPy reference."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedtiny.sparse.robust_mean import (
    BucketMean,
    CenteredMean,
    KrumMean,
    RobustMean,
    median,
    trimmed,
)
from fedtiny.sparse.vector import SparseVector

from .strategies import sparse_vectors

SIZE = 8
ARRAYS = hnp.arrays(np.float32, (2, 3), elements=st.floats(-1e6, 1e6, width=32))
SHARES = st.floats(0.01, 0.49)


def middle_of(values, cut, **options):
    mean = RobustMean(cut, **options)
    for value in values:
        mean.add({"x": value}, 1)
    return {**mean.dense(), **mean.sparse()}["x"]


def sparse(values):
    return SparseVector(4, np.array([*values], np.int32), np.array([*values.values()], "f4"))


@pytest.mark.parametrize(
    ("values", "cut", "expected"),
    [
        ([7], median, 7),
        ([1, 4], median, 2.5),
        ([9, 1, 4], median, 4),
        ([8, 1, 2, 4], median, 3),
        ([1, 4], trimmed(0.4), 2.5),
        ([9, 1, 4], trimmed(0.1), 4),
        ([0, 1, 2, 6, 1000], trimmed(0.1), 3),
        ([-1000, 1, 2, 3, 1000], trimmed(0.4), 2),
    ],
)
def test_the_middle_by_hand(values, cut, expected):
    assert middle_of([np.array([value], "f4") for value in values], cut).tolist() == [expected]


def test_a_missing_entry_is_zero():
    vectors = [sparse({0: 3, 2: 1}), sparse({0: 5, 3: -6}), sparse({0: 9, 2: 2})]
    found = middle_of(vectors, median)
    assert found.indices.tolist() == [0, 2, 3]
    assert found.values.tolist() == [5, 1, 0]


def test_where_only_holders_count_a_missing_entry_does_not():
    vectors = [sparse({0: 3, 2: 1}), sparse({0: 5, 3: -6}), sparse({0: 9, 2: 2})]
    found = middle_of(vectors, median, holders_only=True)
    assert found.indices.tolist() == [0, 2, 3]
    assert found.values.tolist() == [5, 1.5, -6]


def by_numpy(columns, share):
    """The same, one number after the other."""
    found = []
    for column in columns:
        held = sorted(float(value) for value in column if value is not None)
        cut = (len(held) - 1) // 2
        if share is not None:
            cut = min(cut, int(np.ceil(round(share * len(held), 9))))
        found.append(np.mean(held[cut : len(held) - cut]))
    return np.array(found, np.float32)


@given(st.lists(ARRAYS, min_size=1, max_size=9), st.none() | SHARES)
def test_arrays_beside_the_reference(arrays, share):
    cut = median if share is None else trimmed(share)
    found = middle_of(arrays, cut)
    columns = zip(*(array.reshape(-1).tolist() for array in arrays), strict=True)
    assert found.dtype == np.float32
    assert found.shape == (2, 3)
    np.testing.assert_allclose(found.reshape(-1), by_numpy(columns, share), rtol=1e-6)


@given(st.lists(ARRAYS, min_size=1, max_size=9))
@example([np.zeros((2, 3), np.float32), np.full((2, 3), -1e-45, np.float32)])
def test_the_median_is_numpy_s(arrays):
    expected = np.median(np.stack(arrays).astype(np.float64), axis=0).astype(np.float32) + 0
    assert middle_of(arrays, median).tobytes() == expected.tobytes()


@given(st.lists(sparse_vectors(SIZE), min_size=1, max_size=7), st.none() | SHARES, st.booleans())
def test_sparse_vectors_beside_the_reference(vectors, share, holders_only):
    cut = median if share is None else trimmed(share)
    found = middle_of(vectors, cut, holders_only=holders_only)
    missing = None if holders_only else 0.0
    rows = [dict(zip(v.indices.tolist(), v.values.tolist(), strict=True)) for v in vectors]
    union = sorted(set().union(*rows))
    columns = [[row.get(position, missing) for row in rows] for position in union]
    assert found.indices.tolist() == union
    np.testing.assert_allclose(found.values, by_numpy(columns, share), rtol=1e-6)


@given(st.lists(ARRAYS, min_size=2, max_size=6), st.randoms(use_true_random=False), SHARES)
def test_the_order_of_the_devices_does_not_matter(arrays, random, share):
    shuffled = random.sample(arrays, len(arrays))
    cut = trimmed(share)
    assert middle_of(arrays, cut).tobytes() == middle_of(shuffled, cut).tobytes()


def test_zeros_of_either_sign_are_one():
    values = [np.array([value], "f4") for value in (0.0, -0.0, -0.0)]
    for ordered in (values, values[::-1]):
        assert str(middle_of(ordered, median)[0]) == "0.0"


def test_sums_are_in_float64():
    values = [np.array([value], "f4") for value in (2**24, 1, 1, 1, 1)]
    assert middle_of(values, lambda count: 0).tolist() == [(2**24 + 4) / 5]


def test_more_values_than_a_piece():
    arrays = [np.arange(100_000, dtype="f4") * factor for factor in (1, 2, 1e20)]
    assert (middle_of(arrays, median) == arrays[1]).all()


def test_the_mean_keeps_no_hold_on_what_it_was_given():
    mean, given_ = RobustMean(median), np.array([1.0])
    mean.add({"x": given_}, 1)
    given_[0] = 9
    assert mean.dense()["x"].tolist() == [1]


def test_no_device_gives_nothing():
    assert RobustMean(median).dense() == RobustMean(median).sparse() == {}


def test_every_device_gives_the_same_shapes_and_a_refused_one_leaves_no_trace():
    mean = RobustMean(median)
    mean.add({"x": np.ones(2)}, 1)
    for other in ({"x": np.ones(3)}, {"y": np.ones(2)}, {"x": sparse({0: 1})}, {}):
        with pytest.raises(ValueError, match="the same values in the same shapes"):
            mean.add(other, 1)
    assert mean.dense()["x"].tolist() == [1, 1]


# Whole devices: centered clipping, multi-Krum, buckets


def reduced(mean, rows):
    for row in rows:
        mean.add({"x": np.float32(row)}, 1)
    return mean.dense()["x"]


def test_krum_leaves_out_who_is_far_from_the_others():
    rows = [[0, 0], [1, 0], [0, 1], [1, 1], [100, 100]]
    mean = KrumMean(trimmed(0.2))
    assert reduced(mean, rows).tolist() == [0.5, 0.5]
    assert mean.chosen() == [0, 1, 2, 3]


def test_krum_without_liars_is_the_mean_of_nearly_all():
    rows = [[1.0], [2.0], [3.0]]
    assert reduced(KrumMean(lambda count: 0), rows).tolist() == [2]


def test_krum_stands_values_that_overflow_when_squared():
    assert reduced(KrumMean(trimmed(0.3)), [[1], [2], [3], [3e38]]).tolist() == [2]


def test_centered_clipping_of_devices_alike_is_their_mean():
    np.testing.assert_allclose(reduced(CenteredMean(), [[1, 5]] * 4), [1, 5])


def test_centered_clipping_by_hand():
    """From the median 1 the steps -1, 0, 9 are clipped to their median norm 1: -1, 0, 1."""
    assert reduced(CenteredMean(), [[0], [1], [10]]).tolist() == [1]


@pytest.mark.parametrize("mean", [CenteredMean(), KrumMean(trimmed(0.3)), RobustMean(median)])
def test_two_liars_of_seven_do_not_move_it_far(mean):
    rows = [[value] for value in (1, 1.1, 0.9, 1.05, 0.95, 1e30, -3e38)]
    assert 0.5 < reduced(mean, rows)[0] < 1.5


@pytest.mark.parametrize("kind", [CenteredMean, lambda holders: KrumMean(median, holders)])
def test_sparse_vectors_over_holders(kind):
    mean = kind(True)
    for values in ({0: 1.0, 1: 4.0}, {0: 1.0}, {0: 1.0, 1: 4.0}):
        mean.add({"x": sparse(values)}, 1)
    found = mean.sparse()["x"]
    assert found.indices.tolist() == [0, 1]
    assert found.values.tolist() == [1, 4]
    assert mean.dense() == {}


def test_buckets_are_means_of_devices_drawn_at_random():
    rows = [[float(k)] for k in range(6)]
    draw = np.random.default_rng(3)
    order = np.random.default_rng(3).permutation(6)
    expected = np.median([order[start : start + 2].mean() for start in (0, 2, 4)])
    mean = BucketMean(RobustMean(median), 2, draw)
    assert reduced(mean, rows).tolist() == [expected]


def test_nothing_given_gives_nothing():
    for mean in (CenteredMean(), KrumMean(median), BucketMean(CenteredMean(), 2, None)):
        assert mean.dense() == mean.sparse() == {}
        mean.add({}, 1)
        assert mean.dense() == {}
