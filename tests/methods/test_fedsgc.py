"""FedSGC: directions as they travel, the swap that heeds them, and the mean with absent devices."""

import numpy as np
import pytest

from fedtiny import methods
from fedtiny.devices.node import answer
from fedtiny.federation.messages import Reply, Request, congruent_swap, train
from fedtiny.federation.rounds import play_round, prepare
from fedtiny.federation.server import Server
from fedtiny.federation.transport import HOLDERS_AND_ABSENT, Traffic, reducer_for
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse import congruity
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

from ..devices.tiny import lab, settings
from ..federation.fakes import FakeTransport

SPEC = ParamSpec({"a": (10,), "b": (6,)}, {"bias": (1,)}, (("a",), ("b",)), (), "first", "last")
MASK = Mask(SPEC, {"a": [0, 1, 2, 3], "b": [0, 5]})


def theta_of(a, b=(1, 1), mask=MASK):
    return Theta(mask, np.array([*a, *b, 0], np.float32))


def test_directions_of_kept_weights_take_two_bits():
    before, after = theta_of([1, 1, 1, -1]), theta_of([2, 0.5, 1, -1.5], b=(3, 1))
    packed = congruity.packed_directions(before, after)
    assert packed[congruity.OF_KEPT].tolist() == [0b10010001, 0b10000000]
    assert packed[congruity.OF_DROPPED].tolist() == []
    ways = congruity.directions_of_kept(packed, MASK)
    assert {layer: signs.tolist() for layer, signs in ways.items()} == {
        "a": [1, -1, 0, -1],
        "b": [1, 0],
    }


def test_a_dropped_weight_went_to_zero_and_a_grown_one_came_from_it():
    """Of a weight 2 (of value -4) made way for 7; of b weight 5 (value 1) for 3."""
    before = theta_of([1, 1, -4, 1])
    mask = Mask(SPEC, {"a": [0, 1, 3, 7], "b": [0, 3]})
    packed = congruity.packed_directions(before, theta_of([1, 1, 1, -0.5], (1, 2), mask))
    assert packed[congruity.OF_DROPPED].tolist() == [1 + 2, -(10 + 1 + 5)]
    assert congruity.directions_of_kept(packed, mask)["a"].tolist() == [0, 0, 0, -1]
    dropped = congruity.directions_of_dropped(packed, mask)
    assert dropped["a"].indices.tolist() == [2]
    assert dropped["a"].values.tolist() == [1]
    assert dropped["b"].indices.tolist() == [5]
    assert dropped["b"].values.tolist() == [-1]


SENT = theta_of([1, 2, 3, 4])
TRAINED = theta_of([1.5, 1.5, 3.5, 3.5])  # went up, down, up, down
GRADIENTS = {"a": SparseVector(10, np.array([4, 6, 9], np.int32), np.array([5, -9, 7], "f4"))}


def ways(*signs, dropped=()):
    """The global model's directions of layer a, and of what was dropped from it."""
    bits = np.array([[sign > 0, sign < 0] for sign in (*signs, 0, 0)])
    coded = np.array([sign * (1 + position) for position, sign in dropped], np.int32)
    return {congruity.OF_KEPT: np.packbits(bits), congruity.OF_DROPPED: coded}


def swapped(arrays, number, share, of_dropped=None):
    theta = congruity.congruent_swap(
        TRAINED, SENT, arrays, GRADIENTS, of_dropped or {}, {"a": number}, share
    )
    return theta.mask.indices("a").tolist()


def test_without_directions_it_swaps_by_magnitude_and_gradient():
    assert swapped(ways(0, 0, 0, 0), 2, share=1.0) == [2, 3, 6, 9]


def test_weights_that_moved_the_other_way_go_first():
    """The model went down at 2 and up at 3, where the device went up and down."""
    assert swapped(ways(1, -1, -1, 1), 2, share=1.0) == [0, 1, 6, 9]


def test_only_a_share_of_the_swap_heeds_directions():
    """One of two: 2 is the smaller of those that moved the other way, then 0 is the smallest."""
    assert swapped(ways(1, -1, -1, 1), 2, share=0.5) == [1, 3, 6, 9]
    assert swapped(ways(1, -1, -1, 1), 2, share=0.49) == [2, 3, 6, 9]


def test_a_weight_that_would_move_the_same_way_grows_first():
    """5 and 7 were dropped going up; a step against the gradient moves 5 up and 7 down."""
    arrays = ways(0, 0, 0, 0, dropped=[(5, 1), (7, 1)])
    of_dropped = {"a": np.array([-1.0, 2.0], np.float32)}
    assert swapped(arrays, 2, share=1.0, of_dropped=of_dropped) == [2, 3, 5, 6]
    assert swapped(arrays, 2, share=0.49, of_dropped=of_dropped) == [2, 3, 6, 9]


def test_a_weight_that_is_large_and_preferred_grows_once():
    arrays = ways(0, 0, 0, 0, dropped=[(6, 1)])
    of_dropped = {"a": np.array([-9.0], np.float32)}
    assert swapped(arrays, 2, share=1.0, of_dropped=of_dropped) == [2, 3, 6, 9]


def test_absent_devices_count_with_what_they_would_have_been_sent():
    """One device of 2 samples answers with 5 in place of 1; others have 6 samples."""
    reducer = reducer_for(HOLDERS_AND_ABSENT)
    own = Mask(SPEC, {"a": [0, 2, 3, 5], "b": [0, 5]})
    reducer.add(Reply(0, 2, theta_of([9, 7, 4, 8], mask=own)))
    reducer.add_absent(SENT, 6)
    theta = reducer.outcome({}, Traffic()).theta
    assert theta.mask.indices("a").tolist() == [0, 1, 2, 3, 5]
    expected = [(2 * 9 + 6 * 1) / 8, 2, (2 * 7 + 6 * 3) / 8, 4, 8]
    np.testing.assert_allclose(theta.kept("a"), expected, rtol=1e-6)


def test_a_round_of_few_devices_is_a_small_step():
    """Of 12, 9 and 21 samples only the first device's count fully."""
    fleet = {"devices": 3, "fraction": 0.3}
    config = settings(method="fedsgc", fleet=fleet, pruning={"delta_r": 5, "r_stop": 5})
    bench = lab(config)
    prepare(bench.server, bench.method)
    bench.server.round = 1  # in which nothing is swapped
    before = bench.server.theta
    result = play_round(bench.server, bench.method)
    (asked,) = result.outcome.answered
    request = Request("train", "fedsgc", 1, (train(1),), before)
    alone = answer(bench.engine, request, bench.shards[asked], bench.config.seed).theta
    share = len(bench.shards[asked]) / sum(map(len, bench.shards))
    expected = before.vector + share * (alone.vector - before.vector)
    np.testing.assert_allclose(bench.server.theta.vector, expected, atol=1e-6)


def config_of(**pruning):
    pruning = {"delta_r": 2, "r_stop": 8} | pruning
    return settings(method="fedsgc", density=0.4, train={"local_epochs": 5}, pruning=pruning)


@pytest.mark.parametrize(("delta_r", "recent"), [(1, True), (2, False)])
def test_devices_train_swap_and_train_on(delta_r, recent):
    config = config_of(delta_r=delta_r)
    server, method = Server(config, FakeTransport(), SENT, round=2), methods.create(config)
    _, swap, _ = program = method.train_locally(server)
    assert program == (train(3), congruent_swap(swap.counts, 0.0, 0.01, recent), train(2))
    server.round = 9
    assert method.train_locally(server) == (train(5),)
    assert method.request_arrays(server) == {}


def test_the_server_remembers_which_way_the_model_went():
    def devices(device, request):
        return Reply(device, 1, Theta(MASK, request.theta.vector + np.float32(1)))

    config = config_of()
    server, method = Server(config, FakeTransport(answer=devices), SENT), methods.create(config)
    server.coarse_pruned = True
    sent = method.request_arrays(server)
    assert congruity.directions_of_kept(sent, MASK)["a"].tolist() == [0, 0, 0, 0]
    play_round(server, method)
    server.round = 2
    sent = method.request_arrays(server)
    assert congruity.directions_of_kept(sent, MASK)["a"].tolist() == [1, 1, 1, 1]
    assert sent[congruity.OF_KEPT].nbytes == 2  # six weights


def test_with_every_round_adjusting_growth_heeds_directions_too():
    """A real device: the gradients of what was dropped are those that top_gradients would find."""
    bench = lab(settings(method="fedsgc", pruning={"delta_r": 1, "r_stop": 8}))
    prepare(bench.server, bench.method)
    play_round(bench.server, bench.method)
    theta, arrays = bench.server.theta, dict(bench.server.arrays)
    dropped = congruity.directions_of_dropped(arrays, theta.mask)
    assert sum(map(len, dropped.values())) > 0
    layer = max(dropped, key=lambda name: len(dropped[name]))
    program = (congruent_swap({layer: 3}, 0.01, 1.0, recent=True), train(1))
    request = Request("train", "fedsgc", 1, program, theta, arrays)
    reply = answer(bench.engine, request, bench.shards[2], bench.config.seed)
    bench.engine.load(theta)
    every = {layer: theta.param_spec.sizes[layer]}
    found = bench.engine.top_gradients(
        bench.shards[2], bench.rng_key(2, round=1), counts=every, epsilon=0.01
    )[layer].dense()
    ways_of = dropped[layer]
    along = ways_of.indices[ways_of.values * -np.sign(found[ways_of.indices]) > 0]
    preferred = along[np.argsort(-np.abs(found[along]), kind="stable")[:3]]
    grown = np.setdiff1d(reply.theta.mask.indices(layer), theta.mask.indices(layer))
    assert np.isin(preferred, grown).all()
