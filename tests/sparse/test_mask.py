"""A mask is a mask of its model, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.sparse.mask import Mask

from .strategies import anatomies, anatomy_of, masks

TWO_LAYERS = anatomy_of({"a": (3,), "b": (2, 2)})


def test_a_mask_checked_by_hand():
    mask = Mask(TWO_LAYERS, {"a": [0, 2], "b": [3]})
    assert mask.array("a").tolist() == [True, False, True]
    assert mask.array("b").tolist() == [[False, False], [False, True]]
    assert mask.indices("b").tolist() == [3]
    assert mask.counts == {"a": 2, "b": 1}
    assert mask.densities == {"a": 2 / 3, "b": 1 / 4}
    assert (mask.count, mask.density) == (3, 3 / 7)
    assert list(mask) == ["a", "b"]
    assert repr(mask) == "Mask(layers=2, kept=3, density=0.4286)"


@pytest.mark.parametrize(
    "kept",
    [{}, {"a": [0]}, {"a": [0], "b": [0], "c": [0]}, {"a": [0], "B": [0]}],
    ids=["nothing", "one missing", "one too many", "another name"],
)
def test_names_must_be_those_of_the_model(kept):
    with pytest.raises(ValueError, match="exactly the 2 prunable layers"):
        Mask(TWO_LAYERS, kept)


@pytest.mark.parametrize(
    "positions",
    [[1, 0], [0, 2, 1], [1, 1], [0, 0, 1], [3], [0, 3], [-1], [-1, 0], [0, 1, 2, 3]],
)
def test_positions_must_be_sorted_distinct_and_in_range(positions):
    with pytest.raises(
        ValueError, match=r"a: kept positions must be .* sorted, distinct and below 3"
    ):
        Mask(TWO_LAYERS, {"a": positions, "b": None})


@pytest.mark.parametrize(
    "positions",
    [[0.0, 1.0], [0.5], [True, False], [[0, 1]], 1, ["0"], ["0", "1"], [None], [None, 1], [2**70]],
    ids=repr,
)
def test_positions_must_be_a_list_of_whole_numbers(positions):
    with pytest.raises(ValueError, match="a: kept positions must be whole numbers"):
        Mask(TWO_LAYERS, {"a": positions, "b": None})


@pytest.mark.parametrize(
    "positions",
    [np.array([2, 0], np.uint8), np.array([1, 200, 2], np.uint8), np.array([2, 0], np.uint64)],
    ids=repr,
)
def test_unsigned_positions_must_be_sorted_too(positions):
    with pytest.raises(ValueError, match="sorted, distinct and below 3"):
        Mask(TWO_LAYERS, {"a": positions, "b": None})


@pytest.mark.parametrize(
    "bits",
    [[1, 1], [1, 1, 0, 0], [[1, 1, 0]], True, [[True], [True], [False]]],
    ids=repr,
)
def test_arrays_must_have_the_shapes_of_the_layers(bits):
    with pytest.raises(ValueError, match="does not fit the layer"):
        Mask.from_arrays(TWO_LAYERS, {"a": bits, "b": np.ones((2, 2))})


@pytest.mark.parametrize("odd", [2, -1, 0.5, np.nan, 1e-9])
def test_arrays_must_hold_zeros_and_ones(odd):
    with pytest.raises(ValueError, match="zeros and ones only"):
        Mask.from_arrays(TWO_LAYERS, {"a": [0, 1, odd], "b": np.ones((2, 2))})


def test_arrays_must_be_those_of_the_model():
    with pytest.raises(ValueError, match="exactly the 2 prunable layers"):
        Mask.from_arrays(TWO_LAYERS, {"a": [0, 1, 1]})
    with pytest.raises(ValueError, match="does not fit"):
        Mask.from_arrays(TWO_LAYERS, {"a": [0, 1, 1], "b": np.ones((2, 2)), "c": [1]})


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float32])
def test_zeros_and_ones_may_be_of_any_type(dtype):
    arrays = {"a": np.array([1, 0, 1], dtype), "b": np.zeros((2, 2), dtype)}
    assert Mask.from_arrays(TWO_LAYERS, arrays) == Mask(TWO_LAYERS, {"a": [0, 2], "b": []})


def test_what_the_caller_does_to_its_array_later_changes_nothing():
    positions = np.array([0, 2], dtype=np.int32)
    mask = Mask(TWO_LAYERS, {"a": positions, "b": None})
    version = mask.version
    positions[:] = 1
    assert mask.indices("a").tolist() == [0, 2]
    assert mask.version == version == Mask(TWO_LAYERS, {"a": [0, 2], "b": None}).version


def test_what_a_mask_hands_out_cannot_change_it():
    mask = Mask(TWO_LAYERS, {"a": [0, 2], "b": None})
    with pytest.raises(ValueError, match="read-only"):
        mask.indices("a")[0] = 1
    mask.array("a")[:] = False
    if (all_of_b := mask.indices("b")).flags.writeable:
        all_of_b[:] = 0
    assert mask.indices("a").tolist() == [0, 2]
    assert mask.indices("b").tolist() == [0, 1, 2, 3]


def test_the_counts_a_mask_hands_out_cannot_be_changed():
    mask = Mask(TWO_LAYERS, {"a": [0, 2], "b": None})
    for handed_out in (mask.counts, mask.densities):
        with pytest.raises(TypeError):
            handed_out["a"] = 3
    assert mask.count == 6


@given(anatomies())
def test_all_positions_are_the_full_mask(param_spec):
    full = Mask.full(param_spec)
    listed = Mask(param_spec, {layer: range(size) for layer, size in param_spec.sizes.items()})
    ones = Mask.from_arrays(
        param_spec, {n: np.ones(shape) for n, shape in param_spec.prunable.items()}
    )
    assert full == listed == ones
    assert full.version == listed.version == ones.version
    assert all(listed.is_full(layer) for layer in listed)
    assert full.density == 1
    assert full.counts == param_spec.sizes
    assert all(full.array(layer).all() for layer in full)


@given(masks())
def test_arrays_and_indices_round_trip(mask):
    from_arrays = Mask.from_arrays(mask.param_spec, {layer: mask.array(layer) for layer in mask})
    from_indices = Mask(mask.param_spec, {layer: mask.indices(layer) for layer in mask})
    assert mask == from_arrays == from_indices
    assert hash(mask) == hash(from_arrays) == hash(from_indices)
    for layer in mask:
        assert mask.array(layer).shape == mask.param_spec.prunable[layer]
        assert np.flatnonzero(mask.array(layer)).tolist() == mask.indices(layer).tolist()
        assert mask.indices(layer).dtype == np.int32


@given(masks())
def test_counts_and_densities_are_those_of_the_arrays(mask):
    arrays = {layer: mask.array(layer) for layer in mask}
    assert mask.counts == {layer: int(bits.sum()) for layer, bits in arrays.items()}
    assert mask.densities == {layer: float(bits.mean()) for layer, bits in arrays.items()}
    assert mask.count == sum(mask.kept(layer) for layer in mask)
    assert mask.density == mask.count / mask.param_spec.prunable_count


@given(st.data())
def test_versions_are_equal_for_equal_masks_only(data):
    param_spec = data.draw(anatomies())
    one, other = data.draw(masks(param_spec)), data.draw(masks(param_spec))
    same = all(one.indices(layer).tolist() == other.indices(layer).tolist() for layer in one)
    assert (one.version == other.version) == same == (one == other)


def test_versions_tell_layers_and_models_apart():
    twins = anatomy_of({"a": (3,), "b": (3,)})
    assert Mask(twins, {"a": [0], "b": [1]}) != Mask(twins, {"a": [1], "b": [0]})
    assert Mask(twins, {"a": [0, 1], "b": []}) != Mask(twins, {"a": [0], "b": [1]})
    assert Mask.full(twins) != Mask.full(anatomy_of({"a": (3,), "c": (3,)}))
    assert Mask.full(twins) != Mask.full(anatomy_of({"a": (3,), "b": (1, 3)}))
    assert Mask.full(twins) != "Mask.full(twins)"


def test_the_version_does_not_depend_on_the_order_of_giving_or_the_integer_type():
    mask = Mask(TWO_LAYERS, {"a": np.array([0, 2], np.uint16), "b": [1]})
    assert mask == Mask(TWO_LAYERS, {"b": np.array([1], np.int64), "a": (0, 2)})


def test_replace_leaves_the_other_layers_and_the_old_mask():
    old = Mask(TWO_LAYERS, {"a": [0], "b": [1]})
    new = old.replace({"a": [2]})
    assert new == Mask(TWO_LAYERS, {"a": [2], "b": [1]})
    assert old == Mask(TWO_LAYERS, {"a": [0], "b": [1]})
    assert old.replace({"a": None, "b": None}) == Mask.full(TWO_LAYERS)
    with pytest.raises(ValueError, match="prunable layers"):
        old.replace({"c": [0]})


def test_a_model_without_prunable_layers_is_dense():
    assert Mask.full(anatomy_of({})).density == 1
