"""Buffers that live at the same time lie apart; others share."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.graph.plan import place, place_tightly


@dataclass
class Buffer:
    size: int
    born: int
    dies: int
    start: int = 0


@st.composite
def buffers(draw):
    born = draw(st.integers(0, 10))
    return Buffer(draw(st.integers(1, 50)), born, born + draw(st.integers(0, 5)))


@pytest.mark.parametrize("placed", [place, place_tightly])
@given(made=st.lists(buffers(), min_size=1, max_size=12))
def test_what_lives_at_the_same_time_lies_apart(placed, made):
    arena = placed(made)
    assert arena == max(b.start + b.size for b in made)
    for i, one in enumerate(made):
        for other in made[:i]:
            together = one.born <= other.dies and other.born <= one.dies
            apart = one.start >= other.start + other.size or other.start >= one.start + one.size
            assert apart or not together


def test_what_lives_after_each_other_shares():
    made = [Buffer(10, 0, 1), Buffer(10, 2, 3), Buffer(4, 1, 2)]
    assert place(made) == 14
    assert [b.start for b in made] == [0, 0, 10]


def test_a_chain_of_values_takes_the_room_of_two():
    made = [Buffer(size, i, i + 1) for i, size in enumerate((10, 10, 9, 10, 10))]
    assert (place(made), place_tightly(made)) == (29, 20)
    assert [b.start for b in made] == [0, 10, 0, 10, 0]
