"""Growing and dropping swaps weights and never changes how many there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.sparse.adjust import drop, grow_and_drop
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import budget, uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.mean import WeightedMean
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import TopBuffer
from fedtiny.sparse.vector import SparseVector

from .strategies import LEVELS, anatomies, anatomy_of, gradients, schedules, thetas

SIX = anatomy_of({"w": (6,)})


def six(kept, values):
    return Theta(Mask(SIX, {"w": kept}), np.array(values, np.float32))


def gradient(values):
    """The gradient of a layer of six weights, by position."""
    return {"w": SparseVector(6, np.array([*values], np.int32), np.array([*values.values()], "f4"))}


def test_a_swap_checked_by_hand():
    theta = six([0, 2, 5], [3, -1, 2])
    new, changes = grow_and_drop(theta, gradient({1: 0.5, 3: -4, 4: 0}), {"w": 1})
    assert changes["w"].grown.tolist() == [3]
    assert changes["w"].dropped.tolist() == [2]
    assert len(changes["w"]) == 1
    assert new.tensor("w").tolist() == [3, 0, 0, 0, 0, 2]
    assert new.mask.indices("w").tolist() == [0, 3, 5]
    assert theta.mask.indices("w").tolist() == [0, 2, 5]


def test_grown_positions_are_positions_in_the_whole_layer():
    theta = six([0, 1, 2], [3, 1, 2])
    new, changes = grow_and_drop(theta, gradient({3: 1, 4: 9, 5: 1}), {"w": 1})
    assert changes["w"].grown.tolist() == [4]  # and not 1, its place among the pruned
    assert changes["w"].dropped.tolist() == [1]
    assert new.mask.indices("w").tolist() == [0, 2, 4]


def test_dropped_positions_are_positions_in_the_whole_layer():
    theta = six([3, 4, 5], [3, 1, 2])
    new, changes = grow_and_drop(theta, gradient({0: 1, 1: 9, 2: 1}), {"w": 1})
    assert changes["w"].dropped.tolist() == [4]
    assert new.mask.indices("w").tolist() == [1, 3, 5]


def test_a_zero_gradient_never_grows_and_the_drops_follow():
    theta = six([0, 1, 2], [3, 1, 2])
    new, changes = grow_and_drop(theta, gradient({3: 0, 4: 1, 5: 0}), {"w": 3})
    assert changes["w"].grown.tolist() == [4]
    assert changes["w"].dropped.tolist() == [1]
    assert new.mask.count == 3
    still, none = grow_and_drop(theta, gradient({3: 0, 4: 0, 5: 0}), {"w": 3})
    assert len(none["w"]) == len(none["w"].dropped) == 0
    assert still.version == theta.version


def test_the_gradient_of_a_kept_weight_grows_nothing():
    theta = six([0, 1, 2], [3, 1, 2])
    _, changes = grow_and_drop(theta, gradient({0: 9, 1: 9, 5: 1}), {"w": 2})
    assert changes["w"].grown.tolist() == [5]


def test_ties_grow_and_drop_the_lower_position():
    theta = six([0, 1, 2], [1, 1, -1])
    _, changes = grow_and_drop(theta, gradient({3: 2, 4: -2, 5: 2}), {"w": 2})
    assert changes["w"].grown.tolist() == [3, 4]
    assert changes["w"].dropped.tolist() == [0, 1]


def test_a_grown_weight_is_not_dropped_again_though_it_starts_at_zero():
    theta = six([0, 1], [3, 1])
    new, changes = grow_and_drop(theta, gradient({4: 1, 5: 1}), {"w": 2})
    assert changes["w"].dropped.tolist() == [0, 1]
    assert new.mask.indices("w").tolist() == [4, 5]


def test_useless_weights_drop_before_smaller_ones():
    theta, towards = six([0, 1, 2, 3], [4, 3, 0, 1]), gradient({4: 2, 5: 1})
    useful = np.array([False, True, True, True])
    _, changes = grow_and_drop(theta, towards, {"w": 1}, lambda _: useful)
    assert changes["w"].dropped.tolist() == [0]
    _, changes = grow_and_drop(theta, towards, {"w": 2}, lambda _: useful)
    assert changes["w"].dropped.tolist() == [0, 2]
    _, changes = grow_and_drop(theta, towards, {"w": 1}, lambda _: ~useful)
    assert changes["w"].dropped.tolist() == [2]


def test_where_all_is_useful_or_nothing_is_the_smallest_drop():
    theta, towards = six([0, 1, 2, 3], [4, 3, 0, 1]), gradient({4: 2, 5: 1})
    for useful in (None, lambda _: np.ones(4, bool), lambda _: np.zeros(4, bool)):
        _, changes = grow_and_drop(theta, towards, {"w": 2}, useful)
        assert changes["w"].dropped.tolist() == [2, 3]


def test_layers_without_a_number_or_a_gradient_stay():
    twins = anatomy_of({"a": (2,), "b": (2,)})
    theta = Theta(Mask(twins, {"a": [0], "b": [0]}), np.ones(2, np.float32))
    towards = SparseVector(2, np.array([1], np.int32), np.ones(1, np.float32))
    new, changes = grow_and_drop(theta, {"a": towards}, {"a": 1, "b": 1})
    assert changes.keys() == {"a"}
    assert new.mask == Mask(twins, {"a": [1], "b": [0]})
    new, changes = grow_and_drop(theta, {"a": towards, "b": towards}, {"b": 1})
    assert changes.keys() == {"b"}


@given(st.data())
def test_each_layer_swaps_pruned_for_kept_and_keeps_its_density(data):
    old = data.draw(thetas())
    scores = data.draw(gradients(old.param_spec))
    numbers = {layer: data.draw(st.integers(0, 12)) for layer in old.mask}
    new, changes = grow_and_drop(old, scores, numbers)
    assert new.mask.counts == old.mask.counts
    for layer, change in changes.items():
        kept, grown, dropped = map(
            set, (old.mask.indices(layer).tolist(), change.grown.tolist(), change.dropped.tolist())
        )
        assert len(grown) == len(dropped) <= numbers[layer]
        assert dropped <= kept
        assert not grown & kept
        assert (scores[layer].dense()[change.grown] != 0).all()
        assert set(new.mask.indices(layer).tolist()) == (kept - dropped) | grown
        assert not new.tensor(layer).reshape(-1)[change.grown].any()


@given(st.data())
def test_the_best_grow_and_the_least_drop(data):
    old = data.draw(thetas())
    scores = data.draw(gradients(old.param_spec))
    _, changes = grow_and_drop(old, scores, dict.fromkeys(old.mask, 3))
    for layer, change in changes.items():
        slopes, values = scores[layer].dense(), old.tensor(layer).reshape(-1)
        kept = old.mask.indices(layer).tolist()
        growable = [i for i in range(len(slopes)) if i not in kept and slopes[i]]
        growable.sort(key=lambda i: (-abs(slopes[i]), i))
        grown = growable[: min(3, len(kept))]
        assert change.grown.tolist() == sorted(grown)
        kept.sort(key=lambda i: (abs(values[i]), i))
        assert change.dropped.tolist() == sorted(kept[: len(grown)])


def train(theta, generator):
    """Local training stands in for itself: every value becomes another."""
    return Theta(theta.mask, generator.choice(LEVELS, len(theta.vector)).astype(np.float32))


def top_gradients(theta, numbers, generator):
    """One device's reply: its largest gradients of the pruned weights, many of them zero."""
    reply = {}
    for layer, number in numbers.items():
        buffer = TopBuffer(theta.param_spec.sizes[layer], number)
        pruned = np.flatnonzero(~theta.mask.array(layer))
        buffer.push(pruned, generator.choice(LEVELS, len(pruned)).astype(np.float32))
        reply[layer] = buffer.result()
    return reply


@given(anatomies(), st.floats(0.05, 1), schedules(), st.integers(0, 2**32), st.integers(1, 3))
def test_a_whole_run_never_leaves_its_density(param_spec, density, schedule, seed, devices):
    generator = np.random.default_rng(seed)
    target = max(density, len(param_spec.prunable) / param_spec.prunable_count)
    dense = Theta(
        Mask.full(param_spec), np.zeros(param_spec.prunable_count + param_spec.dense_count, "f4")
    )
    theta = start = prune_by_magnitude(train(dense, generator), uniform(param_spec, target))
    for round in range(schedule.r_stop + schedule.delta_r + 1):
        theta = train(theta, generator)
        numbers = schedule.pruning_numbers(theta.mask, round)
        mean = WeightedMean()
        for device in range(devices):
            mean.add(top_gradients(theta, numbers, generator), weight=device + 1)
        before = theta.mask
        theta, changes = grow_and_drop(theta, mean.result(), numbers)
        assert theta.mask.counts == start.mask.counts
        assert theta.mask.count <= budget(param_spec, target)
        assert (theta.mask == before) == (not any(map(len, changes.values())))


def test_a_model_that_diverged_keeps_its_density():
    theta = six([0, 1, 2, 3], [np.nan] * 4)
    new, _ = grow_and_drop(theta, gradient({4: 1}), {"w": 1})
    assert new.mask.count == 4


# Room, and several layers compared with each other


TWO = anatomy_of({"a": (6,), "b": (6,)})


def two_layers(a, b):
    """Weights by position of two layers of six."""
    mask = Mask(TWO, {"a": sorted(a), "b": sorted(b)})
    values = [a[i] for i in sorted(a)] + [b[i] for i in sorted(b)]
    return Theta(mask, np.array(values, np.float32))


def scores_of(**layers):
    return {
        layer: SparseVector(6, np.array([*own], np.int32), np.array([*own.values()], np.float32))
        for layer, own in layers.items()
    }


def test_nothing_is_dropped_for_what_there_is_room_for():
    theta = two_layers({0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.0})
    grown = scores_of(a={3: 9.0, 4: 8.0, 5: 7.0})
    after, changes = grow_and_drop(theta, grown, {"a": 2}, room={"a": 1})
    assert changes["a"].grown.tolist() == [3, 4]
    assert changes["a"].dropped.tolist() == [0]
    assert after.mask.indices("a").tolist() == [1, 2, 3, 4]
    after, changes = grow_and_drop(theta, grown, {"a": 2}, room={"a": 5})
    assert changes["a"].dropped.tolist() == []
    assert after.mask.kept("a") == 5


def test_together_the_largest_scores_and_the_smallest_weights_of_all_layers_count():
    theta = two_layers({0: 0.1, 1: 0.2, 2: 5.0}, {0: 3.0, 1: 4.0, 2: 6.0})
    grown = scores_of(a={3: 1.0, 4: 0.5}, b={3: -9.0, 4: 8.0, 5: 7.0})
    numbers = {"a": 1, "b": 1}
    apart, _ = grow_and_drop(theta, grown, numbers)
    assert apart.mask.counts == {"a": 3, "b": 3}
    after, changes = grow_and_drop(theta, grown, numbers, together=True)
    assert changes["b"].grown.tolist() == [3, 4]
    assert changes["a"].dropped.tolist() == [0, 1]
    assert after.mask.counts == {"a": 1, "b": 5}
    assert after.mask.count == theta.mask.count


def test_together_every_layer_keeps_its_largest_weight():
    theta = two_layers({0: 0.1, 1: 0.3}, {0: 3.0, 1: 4.0, 2: 6.0})
    grown = scores_of(a={}, b={3: 1.0, 4: 1.0, 5: 1.0})
    after, _ = grow_and_drop(theta, grown, {"a": 1, "b": 2}, together=True)
    assert after.mask.indices("a").tolist() == [1]
    assert after.mask.indices("b").tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize("together", [True, False])
def test_dropping_alone_takes_the_smallest(together):
    theta = two_layers({0: 0.1, 1: 0.2, 2: 5.0}, {0: 3.0, 1: 4.0, 2: 6.0})
    after, changes = drop(theta, {"a": 1, "b": 1}, together=together)
    dropped = {layer: change.dropped.tolist() for layer, change in changes.items()}
    assert dropped == ({"a": [0, 1], "b": []} if together else {"a": [0], "b": [0]})
    assert after.mask.count == 4
