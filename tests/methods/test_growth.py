"""Rules of growth, dropping after training, moving weights between layers: by hand, in runs."""

from dataclasses import replace

import numpy as np
import pytest

import fedtiny
from fedtiny.config import from_dict, resolve
from fedtiny.devices.executors import SerialExecutor
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.devices.simulator import Simulator
from fedtiny.federation.messages import Reply, shared_gradients, top_gradients
from fedtiny.federation.rounds import federate, play_round, prepare
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Traffic, reducer_for
from fedtiny.federation.verbs import shared_positions
from fedtiny.methods.fedtiny import FedTiny
from fedtiny.models.param_spec import ParamSpec
from fedtiny.runs.reporter import Silent
from fedtiny.sparse.adjust import mask_changes
from fedtiny.sparse.densities import budget
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector

from ..devices.gpu.rig import lanes_of
from ..devices.tiny import lab, settings
from ..federation.fakes import FakeTransport
from ..runs.tiny import stop, train
from .contract import config_of, given

RULES = ["gradient", "fisher", "votes", "random", "shared"]
KEPT, SIZE = 20, 100
SPEC = ParamSpec(
    prunable={"a": (SIZE,), "b": (SIZE,)},
    dense={"bias": (1,)},
    blocks=(("a",), ("b",)),
    norms=(),
    input_layer="first",
    output_layer="last",
)


def server_at(round=0, **pruning):
    """20 of 100 weights kept in each of two layers, 1, 2, 3, ...; in round 0 six are swapped."""
    given = {"delta_r": 1, "r_stop": 10, "granularity": "entire", **pruning}
    config = resolve(from_dict({"density": 0.2, "pruning": given}))
    mask = Mask(SPEC, dict.fromkeys(SPEC.prunable, np.arange(KEPT)))
    theta = Theta(mask, np.arange(1, length(mask) + 1, dtype=np.float32))
    return Server(config, FakeTransport(), theta, round=round), FedTiny(config)


def outcome_of(theta, *replies, samples=None):
    """The averaged outcome of devices with these gradients (sparse) or arrays (dense)."""
    samples, reducer = samples or [1] * len(replies), reducer_for("mean")
    for device, (layers, count) in enumerate(zip(replies, samples, strict=True)):
        sparse = {n: v for n, v in layers.items() if isinstance(v, dict)}
        dense = {n: v for n, v in layers.items() if not isinstance(v, dict)}
        vectors = {n: vector(own) for n, own in sparse.items()}
        reducer.add(Reply(device, count, theta, vectors, dense))
    return reducer.outcome({}, Traffic())


def vector(entries):
    positions = np.array([*entries], np.int32)
    return SparseVector(SIZE, positions, np.array([*entries.values()], np.float32))


def adjusted(method, server, outcome):
    before = server.theta.mask
    method.adjust(server, outcome)
    return mask_changes(before, server.theta.mask)


# What is asked, and what grows


def test_what_each_rule_asks_of_devices():
    found = {}
    for rule in [None, *RULES]:
        server, method = server_at(growth=rule)
        found[rule] = method.score(server)
    six = {"a": 6, "b": 6}
    assert found[None] == found["gradient"] == (top_gradients(six, 0.0),)
    assert found["fisher"] == (top_gradients(six, 0.0, fisher=True),)
    assert found["votes"] == (top_gradients(six, 0.0, votes=True),)
    assert found["random"] == ()
    assert found["shared"] == (shared_gradients({"a": 24, "b": 24}, 0.0, seed=0),)


def test_an_option_that_is_off_does_not_travel():
    assert top_gradients({"a": 6}, 0.01).options == {"counts": {"a": 6}, "epsilon": 0.01}


def test_votes_count_by_samples_and_not_by_gradient():
    server, method = server_at(70, growth="votes", r_stop=100)  # a is 1
    votes = {"a": {30: 1.0, 40: 1.0}, "b": {}}, {"a": {40: 1.0}, "b": {50: 1.0}}
    outcome = outcome_of(server.theta, *votes, {"a": {31: 1.0}, "b": {}}, samples=[2, 2, 3])
    changes = adjusted(method, server, outcome)
    assert changes["a"].grown.tolist() == [40]  # four samples, against two and three
    assert changes["b"].grown.tolist() == [50]


def test_equal_votes_are_drawn_and_not_taken_by_position():
    def grown(seed):
        server, method = server_at(growth="votes")
        server.config = from_dict({"seed": seed, "pruning": {"growth": "votes"}})
        equal = dict.fromkeys(range(20, 100), 1.0)
        return adjusted(method, server, outcome_of(server.theta, {"a": equal, "b": {}}))["a"].grown

    first = [grown(seed) for seed in range(40)]
    assert all(len(own) == 6 for own in first)
    assert np.array_equal(first[0], grown(0))
    assert 50 < np.mean(first) < 70  # of 20 to 99, which have the mean 59.5


def test_random_growth_needs_no_gradient():
    server, method = server_at(growth="random")
    changes = adjusted(method, server, outcome_of(server.theta, {}))
    for layer in "ab":
        assert len(changes[layer].grown) == 6
        assert (changes[layer].grown >= KEPT).all()
        assert changes[layer].dropped.tolist() == [0, 1, 2, 3, 4, 5]
    assert changes["a"].grown.tolist() != changes["b"].grown.tolist()


def test_shared_positions_are_averaged_exactly():
    server, method = server_at(70, growth="shared", r_stop=100)  # a is 1, so four positions
    positions = shared_positions(server.theta.mask, {"a": 4, "b": 4}, seed=0, round=70)
    b = np.array([0, 0, 0, 1], np.float32)
    outcome = outcome_of(
        server.theta,
        {"a": np.array([4, 0, 3, 0], np.float32), "b": b},
        {"a": np.array([-4, 1, 3, 2], np.float32), "b": b},  # the mean is 0, 0.5, 3, 1
    )
    changes = adjusted(method, server, outcome)
    assert changes["a"].grown.tolist() == [positions["a"][2]]
    assert changes["b"].grown.tolist() == [positions["b"][3]]


# Dropping after a round of training


def counts_by_round(rounds, **pruning):
    """Kept weights of layer a after each round, when all pruned weights have gradients."""
    server, method = server_at(drop="after_training", **pruning)
    kept = []
    for round in range(rounds):
        server.round = round
        every = dict.fromkeys(range(SIZE), 1.0)
        pruned = {n: {i: 1.0 for i in every if i not in server.theta.mask.indices(n)} for n in "ab"}
        method.adjust(server, outcome_of(server.theta, pruned))
        kept.append(server.theta.mask.kept("a"))
    return kept


def test_a_layer_grows_trains_and_then_drops():
    # 0.15 (1 + cos(pi r / 12)) 20 is 6 in round 0, 5.1 in 3, 3 in 6, 0.9 in 9
    kept = counts_by_round(14, delta_r=3, r_stop=12)
    # round 0 swaps; 1 makes room for 5; 3 fills it; 4 makes room for 3; 6 fills it; nothing after
    assert kept == [20, 15, 15, 20, 17, 17, 20, 20, 20, 20, 20, 20, 20, 20]


def test_what_drops_is_the_smallest_of_what_has_trained():
    server, method = server_at(drop="after_training", delta_r=2, r_stop=10)
    grown = {"a": dict.fromkeys(range(90, 96), 1.0), "b": {}}
    method.adjust(server, outcome_of(server.theta, grown))
    assert server.theta.mask.indices("a").tolist() == [*range(6, 20), *range(90, 96)]
    values = server.theta.vector.copy()
    trained = [9.0, 0.5, 9.0, 9.0, 0.4, 9.0]  # two of the grown stay small, as does 6 with 7.0
    values[server.theta.places["a"]] = [*range(7, 21), *trained]
    server.theta, server.round = Theta(server.theta.mask, values), 1
    method.adjust(server, outcome_of(server.theta, {}))
    # in round 2 floor(0.15 (1 + cos 0.2 pi) 20) = 5 will grow
    assert server.theta.mask.indices("a").tolist() == [9, *range(10, 20), 90, 92, 93, 95]


@pytest.mark.parametrize("together", [False, True])
def test_every_round_both_ways_are_the_same(together):
    """With an adjustment of all layers in each round there is nothing to wait for."""

    def masks(when):
        pruning = {"drop": when, "delta_r": 1, "granularity": "entire", "redistribute": together}
        bench = lab(settings(pruning=pruning))
        return [bench.server.theta.mask.version for _ in federate(bench.server, bench.method, 4)]

    assert masks("after_training") == masks("with_growth")


# Moving weights between layers


def test_weights_move_to_the_layer_with_the_larger_gradients():
    server, method = server_at(redistribute=True)
    large, small = dict.fromkeys(range(30, 60), 5.0), dict.fromkeys(range(30, 60), 1.0)
    changes = adjusted(method, server, outcome_of(server.theta, {"a": small, "b": large}))
    assert changes["b"].grown.tolist() == [*range(30, 42)]  # all twelve
    assert changes["a"].dropped.tolist() == [*range(12)]  # a has 1 to 20, b 21 to 40
    assert server.theta.mask.counts == {"a": 8, "b": 32}


# Whole runs


@pytest.mark.parametrize("redistribute", [False, True])
@pytest.mark.parametrize("drop", ["with_growth", "after_training"])
@pytest.mark.parametrize("rule", RULES)
def test_a_run_stays_within_its_density(rule, drop, redistribute):
    how = {"growth": rule, "drop": drop, "redistribute": redistribute}
    pruning = {"granularity": "entire", "delta_r": 2, "r_stop": 6, **how}
    bench = lab(settings(density=0.15, fleet={"wire": "encode"}, pruning=pruning))
    prepare(bench.server, bench.method)
    full, grew = bench.server.theta.mask.count, False
    assert full <= budget(bench.param_spec, 0.15)
    for result in federate(bench.server, bench.method, 8):
        mask = bench.server.theta.mask
        assert 0.65 * full <= mask.count <= full
        assert min(mask.counts.values()) >= 1
        grew = grew or any(len(change.grown) for change in result.changes.values())
    assert grew
    if rule != "votes":  # a device has no vote for a weight without gradient
        assert mask.count == full


def first_adjustment(rule, executor_of):
    bench = lab(settings(pruning={"growth": rule, "granularity": "entire", "delta_r": 1}))
    bench.server.transport = Simulator(executor_of(bench), bench.shards, bench.config)
    prepare(bench.server, bench.method)
    return play_round(bench.server, bench.method)


@pytest.mark.parametrize("rule", RULES)
def test_engines_grow_the_same(rule):
    """After a round of training in other arithmetic a weight may differ; 99 in 100 do not."""
    expected, *others = (
        first_adjustment(rule, executor_of)
        for executor_of in (
            lambda bench: SerialExecutor(bench.engine, 0),
            lambda bench: SerialExecutor(NativeEngine(bench.spec), 0),
            lambda bench: lanes_of(bench, 1),
        )
    )
    grown = {(n, i) for n, change in expected.changes.items() for i in change.grown.tolist()}
    assert grown
    for found in others:
        assert found.mask == expected.mask
        own = {(n, i) for n, change in found.changes.items() for i in change.grown.tolist()}
        assert len(own & grown) >= 0.99 * len(grown)


def test_a_run_that_drops_later_is_resumed_to_the_bit(tmp_path):
    config = config_of("fedtiny")
    pruning = replace(config.pruning, drop="after_training", growth="votes", delta_r=2, r_stop=5)
    config = replace(config, rounds=4, pruning=pruning)
    whole = train(config, tmp_path / "whole", **given())
    stop(config, tmp_path / "cut", 1, **given())
    resumed = fedtiny.resume(tmp_path / "cut", reporter=Silent(), **given())
    for name in ("model.safetensors", "checkpoint.safetensors"):
        assert (whole.path / name).read_bytes() == (resumed.path / name).read_bytes()
