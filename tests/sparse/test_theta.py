"""A theta holds the kept weights and the dense tensors, and no place for a pruned weight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length, places

from .strategies import anatomy_of, masks, thetas

THREE_WEIGHTS = anatomy_of({"w": (3,)}, {"bias": (2,)})
TENSORS = {"w": np.array([1.0, -2.0, 3.0]), "bias": np.array([0.5, 0.25])}


def ends() -> Theta:
    """The first and the last of three weights, and the bias."""
    return Theta.from_tensors(TENSORS, Mask(THREE_WEIGHTS, {"w": [0, 2]}))


def test_a_theta_checked_by_hand():
    theta = ends()
    assert theta.vector.tolist() == [1, 3, 0.5, 0.25]
    assert theta.places == {"w": slice(0, 2), "bias": slice(2, 4)}
    assert theta.kept("w").tolist() == [1, 3]
    assert theta.tensor("w").tolist() == [1, 0, 3]
    assert theta.tensor("bias").tolist() == [0.5, 0.25]
    assert theta.param_spec is THREE_WEIGHTS


def test_a_new_mask_checked_by_hand():
    grown = ends().remasked(Mask(THREE_WEIGHTS, {"w": [0, 1]}))
    assert grown.tensor("w").tolist() == [1, 0, 0]
    assert grown.vector.tolist() == [1, 0, 0.5, 0.25]


def test_norms_of_another_checked_by_hand():
    two_units = anatomy_of({"w": (2, 3)}, {"bias": (1,)})
    tensors = {"w": np.array([[3.0, 0.0, 4.0], [0.0, 6.0, 8.0]]), "bias": np.array([0.5])}
    dense = Theta.from_tensors(tensors, Mask.full(two_units))
    one_each = dense.remasked(Mask(two_units, {"w": [0, 5]}))
    assert one_each.with_norms_of(dense, ["w"]).vector.tolist() == [5, 10, 0.5]
    assert one_each.with_norms_of(dense, []).vector.tolist() == [3, 8, 0.5]
    assert one_each.with_norms_of(dense, ["w"], power=0).vector.tolist() == [3, 8, 0.5]
    halfway = one_each.with_norms_of(dense, ["w"], 0.5).vector.tolist()
    assert halfway == pytest.approx([3 * (5 / 3) ** 0.5, 8 * (10 / 8) ** 0.5, 0.5])


def test_a_unit_of_zeros_and_one_without_weights_keep_their_norms():
    two_units = anatomy_of({"w": (2, 2)}, {"bias": (1,)})
    tensors = {"w": np.array([[0.0, 2.0], [3.0, 4.0]]), "bias": np.array([0.5])}
    dense = Theta.from_tensors(tensors, Mask.full(two_units))
    zero = dense.remasked(Mask(two_units, {"w": [0, 2]}))  # of the first unit only its zero
    assert zero.with_norms_of(dense, ["w"]).vector.tolist() == [0, 5, 0.5]
    second = dense.remasked(Mask(two_units, {"w": [2]}))
    assert second.with_norms_of(dense, ["w"]).vector.tolist() == [5, 0.5]
    assert dense.with_norms_of(zero, ["w"]).vector.tolist() == pytest.approx([0, 2, 1.8, 2.4, 0.5])


@given(thetas())
def test_a_model_has_its_own_norms(theta):
    assert np.array_equal(
        theta.with_norms_of(theta, theta.mask).vector, theta.vector, equal_nan=True
    )


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(3, np.float32),
        np.zeros(5, np.float32),
        np.zeros((1, 4), np.float32),
        np.zeros(4, np.float64),
        np.zeros(4, np.float16),
        np.zeros(4, np.int32),
    ],
    ids=lambda vector: f"{vector.dtype}{vector.shape}",
)
def test_another_length_or_type_is_refused(vector):
    with pytest.raises(ValueError, match="theta needs 4 float32 values"):
        Theta(ends().mask, vector)


@given(thetas())
def test_tensors_round_trip(theta):
    again = Theta.from_tensors(theta.tensors(), theta.mask)
    assert again.vector.tolist() == theta.vector.tolist()
    assert again.version == theta.version


@given(thetas())
def test_tensors_have_the_model_s_shapes_and_zeros_where_pruned(theta):
    tensors = theta.tensors()
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert shapes == {**theta.param_spec.prunable, **theta.param_spec.dense}
    assert all(tensor.dtype == np.float32 for tensor in tensors.values())
    for layer in theta.mask:
        assert not tensors[layer][~theta.mask.array(layer)].any()
        assert tensors[layer][theta.mask.array(layer)].tolist() == theta.kept(layer).tolist()


@given(masks())
def test_places_follow_one_another_and_fill_the_vector(mask):
    parts = list(places(mask).values())
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == length(mask) == mask.count + mask.param_spec.dense_count


@given(st.data())
def test_remasking_starts_grown_at_zero_and_leaves_the_rest(data):
    old = data.draw(thetas())
    new = old.remasked(data.draw(masks(old.param_spec)))
    for layer in new.mask:
        stays = old.mask.array(layer) & new.mask.array(layer)
        assert new.tensor(layer).tolist() == np.where(stays, old.tensor(layer), 0).tolist()
    for name in old.param_spec.dense:
        assert new.tensor(name).tolist() == old.tensor(name).tolist()


@given(st.data())
def test_a_dropped_weight_does_not_come_back(data):
    old = data.draw(thetas())
    through = old.remasked(data.draw(masks(old.param_spec)))
    back = through.remasked(old.mask)
    for layer in old.mask:
        dropped = ~through.mask.array(layer)
        assert not back.tensor(layer)[dropped].any()


@given(thetas())
def test_remasking_with_the_same_mask_changes_nothing(theta):
    assert theta.remasked(theta.mask).version == theta.version


def test_remasking_does_not_touch_the_old_theta():
    old = ends()
    new = old.remasked(Mask(THREE_WEIGHTS, {"w": [1]}))
    assert not np.shares_memory(new.vector, old.vector)
    assert old.vector.tolist() == [1, 3, 0.5, 0.25]


def test_dense_tensors_can_be_replaced():
    old = ends()
    new = old.with_dense({"bias": np.array([7.0, 8.0])})
    assert new.vector.tolist() == [1, 3, 7, 8]
    assert old.vector.tolist() == [1, 3, 0.5, 0.25]
    assert new.mask == old.mask
    assert old.with_dense({}).version == old.version


def test_dense_tensors_must_fit():
    for size in (1, 3):
        with pytest.raises(ValueError, match=f"bias needs 2 values, got {size}"):
            ends().with_dense({"bias": np.zeros(size)})


@pytest.mark.parametrize(
    ("kept", "change"),
    [(None, {"w": np.ones(1)}), ([0, 2], {"w": np.ones(9)}), (None, {"bias": np.ones(1)})],
)
def test_tensors_of_another_size_are_refused(kept, change):
    mask = Mask(THREE_WEIGHTS, {"w": kept})
    with pytest.raises(ValueError, match=f"{next(iter(change))} needs . values, got"):
        Theta.from_tensors({**TENSORS, **change}, mask)


@pytest.mark.parametrize("name", ["w", "gain"])
def test_with_dense_replaces_dense_tensors_only(name):
    with pytest.raises(ValueError, match=f"{name} is not a dense tensor of the model"):
        ends().with_dense({name: np.array([5.0, 6.0])})


def test_versions_name_the_values_and_the_mask():
    theta = ends()
    assert theta.version == ends().version
    assert theta.version != theta.with_dense({"bias": np.array([0.5, 0.5])}).version
    elsewhere = Theta(Mask(THREE_WEIGHTS, {"w": [0, 1]}), theta.vector)
    assert elsewhere.vector.tolist() == theta.vector.tolist()
    assert elsewhere.version != theta.version


@pytest.mark.parametrize(
    "view",
    [
        lambda theta: theta.vector,
        lambda theta: theta.kept("w"),
        lambda theta: theta.tensor("w"),
        lambda theta: theta.tensor("bias"),
        lambda theta: theta.tensors()["w"],
    ],
    ids=["vector", "kept", "full layer", "dense tensor", "tensors"],
)
def test_the_values_of_a_theta_cannot_be_changed_through_a_view(view):
    theta = Theta.from_tensors(TENSORS, Mask.full(THREE_WEIGHTS))
    with pytest.raises(ValueError, match="read-only"):
        view(theta)[:] = 9
    assert theta.vector.tolist() == [1, -2, 3, 0.5, 0.25]


def test_the_tensor_of_a_pruned_layer_is_a_copy():
    theta = ends()
    theta.tensor("w")[:] = 9
    assert theta.vector.tolist() == [1, 3, 0.5, 0.25]


def test_the_array_a_theta_is_made_of_cannot_be_changed_later():
    values = np.ones(4, np.float32)
    theta = Theta(ends().mask, values)
    with pytest.raises(ValueError, match="read-only"):
        values[:] = 9
    for new in (theta.remasked(theta.mask), theta.with_dense({})):
        assert not new.vector.flags.writeable


def test_a_theta_keeps_no_hold_on_the_tensors_it_was_taken_from():
    tensors = {name: tensor.astype(np.float32) for name, tensor in TENSORS.items()}
    theta = Theta.from_tensors(tensors, Mask.full(THREE_WEIGHTS))
    tensors["w"][:] = 9
    assert theta.tensor("w").tolist() == [1, -2, 3]
