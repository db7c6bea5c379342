"""Positions of a layer as bytes."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtiny.errors import WireError
from fedtiny.federation.wire.indices import (
    BITMAP,
    FULL,
    RICE,
    Reader,
    coded,
    coded_size,
    read_positions,
)


def code(positions, size):
    return b"".join(coded(positions, size))


def decode(data, size):
    reader = Reader(memoryview(data))
    positions = read_positions(reader, size)
    reader.finish()
    return positions


def positions_of(*positions):
    return np.array(positions, np.int32)


@st.composite
def layers(draw):
    size = draw(st.integers(1, 3000))
    density = draw(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    positions = np.flatnonzero(rng.random(size) < density).astype(np.int32)
    return positions[: draw(st.integers(0, size))], size


@given(layers())
@settings(deadline=None)
def test_any_layer_comes_back_and_its_size_is_known(layer):
    positions, size = layer
    data = code(positions, size)
    assert len(data) == coded_size(positions, size)
    found = decode(data, size)
    np.testing.assert_array_equal(np.arange(size) if found is None else found, positions)


def test_a_full_layer_is_one_byte():
    assert code(None, 10**6) == code(np.arange(10, dtype=np.int32), 10) == bytes([FULL])
    assert decode(bytes([FULL]), 10**6) is None


def test_a_layer_of_one_weight():
    assert decode(code(positions_of(), 1), 1).tolist() == []
    assert decode(code(positions_of(0), 1), 1) is None


def test_a_bitmap_by_hand():
    assert code(positions_of(0, 2, 9), 10) == bytes([BITMAP, 0b101, 0b10])


def test_rice_by_hand():
    # gaps 3, 12, 980 with five low bits: 3 = 0.3, 12 = 0.12, 980 = 30.20
    unary = (1 | 2 | 1 << 32).to_bytes(5, "little")
    planes = bytes([0b001, 0b001, 0b110, 0b010, 0b100])
    head = bytes([RICE + 5, 3, 0, 0, 0, 5, 0, 0, 0])
    assert decode(head + unary + planes, 10**6).tolist() == [3, 16, 997]


def test_the_largest_layer_an_int32_can_address():
    size = 2**31 - 1
    positions = positions_of(0, size - 1)
    np.testing.assert_array_equal(decode(code(positions, size), size), positions)


@pytest.mark.parametrize("density", [0.1, 0.05, 0.01, 0.001])
def test_a_random_mask_costs_little_more_than_its_entropy(density):
    size = 400_000
    positions = np.flatnonzero(np.random.default_rng(0).random(size) < density).astype(np.int32)
    share = len(positions) / size
    entropy = -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) / share / 8
    assert coded_size(positions, size) / len(positions) < 1.03 * entropy + 0.05


def test_positions_in_a_row_cost_a_bit_each():
    assert coded_size(np.arange(8000, dtype=np.int32), 10**6) <= 9 + 1000


@pytest.mark.parametrize(
    ("data", "size", "sentence"),
    [
        (b"", 8, "ends inside the form of a layer"),
        (bytes([BITMAP]), 8, "ends inside a bitmap"),
        (bytes([BITMAP, 0b1000]), 3, "behind the end of a bitmap"),
        (bytes([RICE + 31]), 8, "unknown form"),
        (bytes([255]), 8, "unknown form"),
        (bytes([RICE, 1, 0]), 8, "ends inside the length"),
        (bytes([RICE]) + b"\xff" * 8, 2**31 - 1, "claims"),
        (bytes([RICE, 9, 0, 0, 0, 2, 0, 0, 0, 255, 1]), 8, "claims"),
        (bytes([RICE, 1, 0, 0, 0, 9, 0, 0, 0]), 8, "claims"),
        (bytes([RICE, 2, 0, 0, 0, 1, 0, 0, 0, 1]), 8, "does not have the 2 positions"),
        (bytes([RICE, 1, 0, 0, 0, 1, 0, 0, 0, 128]), 5, "behind the end of a layer"),
        (bytes([RICE + 30, 1, 0, 0, 0, 1, 0, 0, 0, 128]) + b"\x01" * 30, 5, "behind the end"),
        (bytes([RICE + 1, 1, 0, 0, 0, 1, 0, 0, 0, 1]), 8, "ends inside the positions"),
        (bytes([RICE + 1, 1, 0, 0, 0, 1, 0, 0, 0, 1, 2]), 8, "bits are set behind"),
    ],
)
def test_lies_are_named(data, size, sentence):
    with pytest.raises(WireError, match=sentence):
        decode(data, size)
