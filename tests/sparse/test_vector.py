"""A sparse vector has one value at each of its positions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.sparse.vector import SparseVector

from .strategies import sparse_vectors


def vector(size: int, indices: list[int], values: list[float]) -> SparseVector:
    return SparseVector(size, np.array(indices, np.int32), np.array(values, np.float32))


def test_a_vector_checked_by_hand():
    given = vector(4, [1, 3], [2, -1])
    assert given.dense().tolist() == [0, 2, 0, -1]
    assert len(given) == 2
    assert vector(2, [], []).dense().tolist() == [0, 0]


@given(st.integers(1, 30).flatmap(sparse_vectors))
def test_the_dense_form_holds_the_values_and_zeros(vector):
    dense = vector.dense()
    assert dense.shape == (vector.size,)
    assert dense[vector.indices].tolist() == vector.values.tolist()
    assert np.count_nonzero(dense) == np.count_nonzero(vector.values)


@pytest.mark.parametrize("indices", [[1, 0], [1, 1], [-1, 0], [0, 3]])
def test_positions_must_be_sorted_distinct_and_in_range(indices):
    with pytest.raises(ValueError, match="sorted, distinct and below 3"):
        vector(3, indices, [1, 1])


@pytest.mark.xfail(strict=True, reason="np.diff wraps around in unsigned integers")
def test_unsigned_positions_must_be_sorted_too():
    with pytest.raises(ValueError, match="sorted, distinct and below 3"):
        SparseVector(3, np.array([2, 0], np.uint32), np.ones(2, np.float32))


def test_each_position_needs_a_value():
    with pytest.raises(ValueError, match="one value for each position"):
        vector(3, [0, 1], [1])
    with pytest.raises(ValueError, match="one value for each position"):
        SparseVector(3, np.zeros((1, 1), np.int32), np.zeros((1, 1), np.float32))
