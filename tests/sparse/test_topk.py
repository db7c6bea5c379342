"""The order by magnitude agrees with a plain sort, ties included."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.sparse.top import largest, smallest

from .strategies import levels

VALUES = st.integers(0, 30).flatmap(levels)
COUNTS = st.integers(-1, 35)


@given(VALUES, COUNTS)
def test_largest_is_a_full_sort_with_ties_to_the_lower_position(values, count):
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    assert largest(values, count).tolist() == sorted(order[: max(count, 0)])


@given(VALUES, COUNTS)
def test_smallest_is_a_full_sort_with_ties_to_the_lower_position(values, count):
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i))
    assert smallest(values, count).tolist() == sorted(order[: max(count, 0)])


@pytest.mark.parametrize("order", [largest, smallest])
def test_as_many_positions_as_asked_for_even_of_a_model_that_diverged(order):
    assert len(order(np.array([np.nan, np.nan, np.nan, 1.0]), 2)) == 2


def test_what_is_no_number_ranks_as_the_largest():
    values = np.array([1.0, np.nan, -3.0, np.nan, 2.0])
    assert largest(values, 3).tolist() == [1, 2, 3]
    assert smallest(values, 4).tolist() == [0, 1, 2, 4]
