"""The buffer ends as a full sort would, whatever the slabs, and stays small."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.sparse.top import TopBuffer

from .strategies import levels


@st.composite
def slabs(draw):
    """A layer's values, and its positions in any order cut anywhere, empty slabs included."""
    values = draw(st.integers(0, 40).flatmap(levels))
    positions = np.array(draw(st.permutations(range(len(values)))), dtype=np.int64)
    cuts = sorted(draw(st.lists(st.integers(0, len(values)), max_size=6)))
    return values, np.split(positions, cuts)


def pushed(values, cut, count):
    buffer = TopBuffer(len(values), count)
    for positions in cut:
        buffer.push(positions, values[positions])
    return buffer.result()


def test_a_buffer_checked_by_hand():
    values = np.array([1, -4, 2, 4, 3], np.float32)
    top = pushed(values, [np.array([4, 0]), np.array([3]), np.array([2, 1])], count=3)
    assert top.indices.tolist() == [1, 3, 4]
    assert top.values.tolist() == [-4, 4, 3]
    assert top.size == 5


def test_ties_go_to_the_lower_position_even_when_it_comes_last():
    values = np.array([1, 1, 1], np.float32)
    top = pushed(values, [np.array([2]), np.array([1]), np.array([0])], count=1)
    assert top.indices.tolist() == [0]


@given(slabs(), st.integers(0, 45))
def test_the_buffer_is_a_full_sort_for_any_slabs(slabs, count):
    values, cut = slabs
    top = pushed(values, cut, count)
    order = sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))
    assert top.indices.tolist() == sorted(order[:count])
    assert top.values.tolist() == values[top.indices].tolist()
    assert (top.indices.dtype, top.values.dtype) == (np.int32, np.float32)


@given(slabs(), st.integers(0, 45))
def test_what_is_no_number_ranks_as_the_largest_for_any_slabs(slabs, count):
    values, cut = slabs
    values = np.where(values == 0.5, np.float32(np.nan), values)
    top = pushed(values, cut, count)
    ranks = np.where(np.isnan(values), np.inf, np.abs(values))
    order = sorted(range(len(values)), key=lambda i: (-ranks[i], i))
    assert top.indices.tolist() == sorted(order[:count])


@given(slabs())
def test_the_buffer_holds_all_when_it_may_and_nothing_when_it_must(slabs):
    values, cut = slabs
    assert pushed(values, cut, len(values) + 7).dense().tolist() == values.tolist()
    assert len(pushed(values, cut, 0)) == 0


def test_a_buffer_with_nothing_pushed_is_empty():
    assert TopBuffer(10, 3).result().dense().tolist() == [0] * 10


COUNT, SLAB = 1_000, 5_000


def peak_bytes(total, direction):
    """Most memory held at once while values come in, those of the slab itself included."""
    tracemalloc.start()
    buffer = TopBuffer(total, COUNT)
    for start in range(0, total, SLAB):
        positions = np.arange(start, start + SLAB, dtype=np.int32)
        buffer.push(positions, direction * positions.astype(np.float32) + 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(buffer.result()) == COUNT
    return peak


@pytest.mark.parametrize("direction", [1, 0], ids=["all enter", "all tie"])
def test_memory_follows_the_buffer_and_the_slab_not_the_layer(direction):
    entry = np.dtype(np.float32).itemsize + np.dtype(np.int32).itemsize
    large, small = (peak_bytes(total, direction) for total in (2_000_000, 50_000))
    assert large < 6 * entry * (COUNT + SLAB)
    assert large < small + entry * COUNT
