"""A sparse vector has one value at each of its positions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.sparse.vector import SparseVector, is_position_list

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


def test_unsigned_positions_must_be_sorted_too():
    with pytest.raises(ValueError, match="sorted, distinct and below 3"):
        SparseVector(3, np.array([2, 0], np.uint32), np.ones(2, np.float32))


def test_each_position_needs_a_value():
    with pytest.raises(ValueError, match="one value for each position"):
        vector(3, [0, 1], [1])
    with pytest.raises(ValueError, match="one value for each position"):
        SparseVector(3, np.zeros(1, np.int32), np.zeros((1, 1), np.float32))


@pytest.mark.parametrize("shape", [(), (1, 1)])
def test_positions_must_be_a_list(shape):
    with pytest.raises(ValueError, match="sorted, distinct and below 3"):
        SparseVector(3, np.zeros(shape, np.int32), np.zeros(shape, np.float32))


@pytest.mark.parametrize("positions", [[], [0], [2], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_position_lists_may_be_of_any_integer_type(positions, dtype):
    assert is_position_list(np.array(positions, dtype), 3)


def test_a_list_of_nothing_has_no_type():
    assert is_position_list(np.array([]), 3)


@pytest.mark.parametrize(
    "positions",
    [[2, 0], [1, 1], [3], [0, 200], [0.0, 1.0], [False, True], [[0, 1]], [[]], 1, ["0", "1"]],
    ids=repr,
)
def test_anything_else_is_no_position_list(positions):
    assert not is_position_list(np.array(positions), 3)


@pytest.mark.parametrize("positions", [[None, None], [0, None], [0, 2**70]], ids=repr)
def test_objects_are_no_positions(positions):
    assert not is_position_list(np.array(positions, object), 3)


def test_a_layer_may_be_larger_than_the_integer_type_reaches():
    assert is_position_list(np.array([0, 127], np.int8), 10**6)
    assert not is_position_list(np.array([-1, 127], np.int8), 10**6)
