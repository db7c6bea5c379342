"""Tables lead back to the weights that they were made from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.errors import ExportError
from fedtiny.export.c_tables import table
from fedtiny.export.network import quantise
from fedtiny.graph.arrays import Weights


def read_back(made, size):
    """The weights that a reader finds, by the rules that `runtime/layer.c` states."""
    found = np.zeros(size, dtype=made.weights.dtype)
    if made.steps is None:
        found[:] = made.weights
        return found
    steps, weights, place = iter(made.steps.tolist()), iter(made.weights), -1
    while True:
        step = next(steps)
        if step >= made.escape:
            step = made.escape + 256 * (step - made.escape) + next(steps)
        place += step + 1
        if place >= size:
            assert (place, next(steps, None), next(weights, None)) == (size, None, None)
            return found
        found[place] = next(weights)


@st.composite
def layers(draw):
    """A layer of a few filters, sparse to dense, with up to 200,000 places."""
    shape = (draw(st.integers(1, 5)), draw(st.sampled_from([1, 7, 300, 40000])))
    size = shape[0] * shape[1]
    kept = draw(st.lists(st.integers(0, size - 1), unique=True, max_size=60))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if draw(st.booleans()):
        kept = np.flatnonzero(rng.random(size) < draw(st.sampled_from([0.0005, 0.01, 0.2, 0.9])))
    values = rng.integers(-3, 4, len(kept)).astype(np.float32)
    return Weights(shape, np.sort(np.array(kept, dtype=np.int64)), values, None)


@given(layers())
def test_every_weight_is_found_again(weights):
    made = table(weights, "fp32")
    np.testing.assert_array_equal(read_back(made, weights.size), weights.dense().reshape(-1))
    dense = table(Weights(weights.shape, None, weights.dense().reshape(-1), None), "fp32")
    np.testing.assert_array_equal(read_back(dense, weights.size), weights.dense().reshape(-1))


@given(layers())
def test_the_most_kept_weights_of_a_filter_are_known(weights):
    made = table(weights, "fp32")
    per_filter = np.count_nonzero(weights.dense(), axis=1)
    assert per_filter.max() <= made.max_kept <= weights.shape[1]


@given(layers())
def test_no_table_is_larger_than_a_whole_one(weights):
    made = table(weights, "fp32")
    arrays = (made.steps, made.weights, made.scales, made.biases)
    assert sum(array.nbytes for array in arrays if array is not None) <= 4 * weights.size


def test_int8_has_a_scale_a_filter():
    values = np.array([1, -2, 0.5, 4, 0.001], dtype=np.float32)
    weights = Weights((2, 500), np.array([3, 7, 400, 600, 999]), values, None)
    made = table(weights, "int8")
    assert made.weights.tolist() == [64, -127, 32, 127]  # 0.001 is nothing beside 4
    assert made.scales.tolist() == quantise(weights)[1].tolist()
    assert made.weights.dtype == np.int8


def test_one_percent_takes_little_more_than_a_byte_a_position():
    rng = np.random.default_rng(0)
    kept = np.flatnonzero(rng.random(512 * 4608) < 0.01)
    values = rng.standard_normal(len(kept)).astype(np.float32)
    made = table(Weights((512, 512, 3, 3), kept, values, None), "int8")
    assert len(made.steps) < 1.1 * len(kept)


def test_a_long_way_takes_zeros_between():
    weights = Weights((1, 300_000), np.array([299_999]), np.ones(1, np.float32), None)
    made = table(weights, "fp32")
    assert np.count_nonzero(made.weights) == 1
    assert len(made.weights) == 300_000 // 65_536 + 1
    assert read_back(made, 300_000)[-1] == 1


def test_what_is_no_number_is_refused():
    weights = Weights((1, 2), None, np.array([1, np.nan], dtype=np.float32), None)
    with pytest.raises(ExportError, match="no finite number"):
        table(weights, "int8")
