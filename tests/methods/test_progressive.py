"""Algorithm 2: who is asked for which gradients, what grows, what drops, and the density."""

from math import cos, floor, pi

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st

from fedtiny.config import from_dict
from fedtiny.federation.messages import Reply, top_gradients
from fedtiny.federation.rounds import federate, prepare
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Traffic, reducer_for
from fedtiny.methods.fedtiny import FedTiny
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.adjust import mask_changes
from fedtiny.sparse.densities import budget
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector

from ..devices.tiny import lab, random_mask, settings
from ..federation.fakes import FakeTransport

LAYERS = ("a", "b", "c", "d", "e")
ANATOMY = ParamSpec(
    prunable=dict.fromkeys(LAYERS, (100,)),
    dense={"bias": (1,)},
    blocks=(("a", "b"), ("c",), ("d", "e")),
    norms=(),
    input_layer="first",
    output_layer="last",
)
KEPT = 20


def adjusted(method, server, outcome):
    """What the method does to the mask."""
    before = server.theta.mask
    method.adjust(server, outcome)
    return mask_changes(before, server.theta.mask)


def server_at(round=0, **pruning):
    """A server at a round, with 20 of 100 weights kept in each layer, and the method."""
    config = from_dict({"density": 0.2, "pruning": {"delta_r": 1, "r_stop": 10, **pruning}})
    mask = Mask(ANATOMY, dict.fromkeys(LAYERS, np.arange(KEPT)))
    theta = Theta(mask, np.arange(1, length(mask) + 1, dtype=np.float32))
    return Server(config, FakeTransport(), theta, round=round), FedTiny(config)


def asked_for(round, **pruning):
    """The layers whose gradients are asked for in a round, with how many of each."""
    server, method = server_at(round, **pruning)
    program = method.score(server)
    if not program:
        return {}
    (verb,) = program
    assert verb == top_gradients(verb.options["counts"], server.config.pruning.gradient_epsilon)
    return verb.options["counts"]


# Who is asked for what


def test_gradients_are_asked_for_in_adjustment_rounds_only():
    rounds = [r for r in range(40) if asked_for(r, delta_r=5, r_stop=21)]
    assert rounds == [0, 5, 10, 15]


def test_nothing_is_left_to_swap_at_the_last_round():
    assert asked_for(10, r_stop=10) == {}
    assert asked_for(9, r_stop=10) == {}  # 0.15 (1 + cos 0.9 pi) 20 is 0.15
    assert asked_for(5, r_stop=10) != {}


@pytest.mark.parametrize("round", [0, 1, 3, 6])
def test_the_number_follows_the_cosine(round):
    expected = floor(0.15 * (1 + cos(pi * round / 10)) * KEPT + 1e-9)
    assert set(asked_for(round, granularity="entire").values()) == {expected}


@pytest.mark.parametrize(
    ("granularity", "order", "turns"),
    [
        ("block", "backward", [{"d", "e"}, {"c"}, {"a", "b"}, {"d", "e"}]),
        ("block", "forward", [{"a", "b"}, {"c"}, {"d", "e"}, {"a", "b"}]),
        ("layer", "backward", [{"e"}, {"d"}, {"c"}, {"b"}]),
        ("layer", "forward", [{"a"}, {"b"}, {"c"}, {"d"}]),
        ("entire", "backward", [set(LAYERS)] * 4),
    ],
)
@pytest.mark.parametrize("delta_r", [1, 3, 10])
def test_the_turn_is_by_event_and_not_by_round(granularity, order, turns, delta_r):
    """With delta_r 3 and three blocks a count of rounds would choose the same block for ever."""
    options = {"delta_r": delta_r, "r_stop": 10 * delta_r, "granularity": granularity}
    found = [set(asked_for(event * delta_r, order=order, **options)) for event in range(4)]
    assert found == turns


def test_without_progressive_pruning_nothing_is_asked_and_nothing_changes():
    server, method = server_at(progressive=False)
    before = server.theta
    assert method.score(server) == ()
    assert adjusted(method, server, mean_of(server.theta, {"d": {50: 9.0}})) == {}
    assert server.theta.version == before.version


# What grows and what drops


def mean_of(theta, *gradients, samples=None):
    """The outcome of devices that reply with these gradients: layer, position, value."""
    samples, reducer = samples or [1] * len(gradients), reducer_for("mean")
    for device, (layers, count) in enumerate(zip(gradients, samples, strict=True)):
        vectors = {
            layer: SparseVector(
                100, np.array([*entries], np.int32), np.array([*entries.values()], np.float32)
            )
            for layer, entries in layers.items()
        }
        reducer.add(Reply(device, count, theta, vectors))
    return reducer.outcome({}, Traffic())


def test_growing_is_by_the_mean_weighted_by_samples_with_missing_as_zero():
    # r_stop 100: at round 70 a is floor(0.15 (1 + cos 0.7 pi) 20) = 1
    server, method = server_at(70, delta_r=10, r_stop=100, granularity="layer", order="forward")
    layer = next(iter(asked_for(70, delta_r=10, r_stop=100, granularity="layer", order="forward")))
    outcome = mean_of(
        server.theta,
        {layer: {30: 9.0, 40: -2.0}},  # 9 of one sample, unknown to the other: 0.9
        {layer: {40: -1.0, 50: 0.9}},  # -2 of one and -1 of nine: -1.1
        samples=[1, 9],
    )
    changes = adjusted(method, server, outcome)
    assert changes[layer].grown.tolist() == [40]


def test_dropped_are_the_smallest_of_the_averaged_weights():
    server, method = server_at(granularity="layer")  # a is 6 of layer e
    values = np.array([*range(20, 0, -1)], np.float32) * np.where(np.arange(20) % 2, -1, 1)
    start = server.theta.places["e"].start
    vector = server.theta.vector.copy()
    vector[start : start + KEPT] = values
    server.theta = Theta(server.theta.mask, vector)
    outcome = mean_of(server.theta, {"e": {90 + i: 1.0 + i for i in range(8)}})
    changes = adjusted(method, server, outcome)
    assert changes["e"].grown.tolist() == [92, 93, 94, 95, 96, 97]
    assert changes["e"].dropped.tolist() == [14, 15, 16, 17, 18, 19]
    kept = server.theta.mask.indices("e").tolist()
    assert kept == [*range(14), *range(92, 98)]
    assert server.theta.kept("e").tolist() == [*values[:14], 0, 0, 0, 0, 0, 0]
    assert server.theta.mask.kept("e") == KEPT


def test_only_the_layers_whose_turn_it_is_change():
    server, method = server_at()
    before = server.theta.mask
    everything = {layer: {60: 1.0, 61: 2.0} for layer in LAYERS}
    changes = adjusted(method, server, mean_of(server.theta, everything))
    assert changes.keys() == {"d", "e"}
    after = server.theta.mask
    for layer in ("a", "b", "c"):
        assert np.array_equal(after.indices(layer), before.indices(layer))


def test_what_does_not_matter_to_anyone_does_not_grow():
    server, method = server_at(granularity="layer")
    changes = adjusted(method, server, mean_of(server.theta, {"e": {70: 0.0, 71: 3.0, 72: 0.0}}))
    assert changes["e"].grown.tolist() == [71]
    assert len(changes["e"].dropped) == 1


def test_a_round_without_gradients_changes_nothing():
    server, method = server_at(1, delta_r=2)
    before = server.theta.version
    assert adjusted(method, server, mean_of(server.theta, {})) == {}
    assert server.theta.version == before


# Whole runs with real devices


def run_of(config, rounds, sizes=(8, 9)):
    """The state before and after every round."""
    bench = lab(config, sizes=sizes)
    prepare(bench.server, bench.method)
    before = bench.server.theta
    for result in federate(bench.server, bench.method, rounds):
        yield result, before, bench.server.theta
        before = bench.server.theta


@pytest.mark.slow
@how(max_examples=15)
@given(
    density=st.floats(0.02, 0.9),
    delta_r=st.integers(1, 3),
    r_stop=st.integers(1, 8),
    granularity=st.sampled_from(["layer", "block", "entire"]),
    order=st.sampled_from(["backward", "forward"]),
    kind=st.sampled_from(["adaptive_bn", "vanilla", "none"]),
    seed=st.integers(0, 999),
)
def test_the_density_never_exceeds_its_target(
    density, delta_r, r_stop, granularity, order, kind, seed
):
    pruning = {"delta_r": delta_r, "r_stop": r_stop, "granularity": granularity, "order": order}
    config = settings(
        density=density, seed=seed, selection={"kind": kind, "pool_size": 2}, pruning=pruning
    )
    for result, before, after in run_of(config, rounds=4):
        assert after.mask.density <= density
        assert after.mask.count <= budget(after.param_spec, density)
        assert after.mask.counts == before.mask.counts
        adjusts = result.round % delta_r == 0 and result.round <= r_stop
        assert adjusts or after.mask == before.mask


def test_grown_weights_were_pruned_start_at_zero_and_learn():
    config = settings(pruning={"granularity": "entire", "delta_r": 2, "r_stop": 20})
    grown_before = {}
    for result, before, after in run_of(config, rounds=4, sizes=(12, 9, 21)):
        for layer, positions in grown_before.items():
            assert after.tensor(layer).reshape(-1)[positions].any()
        grown_before = {}
        for layer, change in result.changes.items():
            assert not before.mask.array(layer).reshape(-1)[change.grown].any()
            assert before.mask.array(layer).reshape(-1)[change.dropped].all()
            assert after.mask.array(layer).reshape(-1)[change.grown].all()
            assert not after.tensor(layer).reshape(-1)[change.grown].any()
            grown_before[layer] = change.grown
        assert bool(result.changes) == (result.round % 2 == 0)


def test_devices_reply_with_the_layers_of_the_turn_and_so_many_of_each():
    config = settings(pruning={"delta_r": 2, "r_stop": 20})
    blocks = lab(config).param_spec.blocks
    for result, before, _ in run_of(config, rounds=5):
        gradients = result.outcome.gradients
        if result.round % 2:
            assert gradients == {}
            continue
        assert tuple(gradients) == blocks[-1 - (result.round // 2) % len(blocks)]
        for layer, vector in gradients.items():
            share = 0.15 * (1 + cos(pi * result.round / 20))
            number = floor(share * before.mask.kept(layer))
            assert number <= len(vector) <= 2 * number  # two devices, each with its own
            assert not before.mask.array(layer).reshape(-1)[vector.indices].any()


def test_gradients_are_averaged_over_the_devices_by_samples():
    sizes = (8, 20, 13)
    config = settings(pruning={"granularity": "entire"})
    bench = lab(config, sizes=sizes)
    prepare(bench.server, bench.method)
    alone = []
    for device in range(3):
        server = lab(config, sizes=sizes).server
        server.theta = bench.server.theta
        program = bench.method.train_locally(server) + bench.method.score(server)
        server._sampled = lambda action, device=device: [device]
        alone.append(server.ask("train", program).gradients)
    (result,) = federate(bench.server, bench.method, 1)
    for layer, found in result.outcome.gradients.items():
        mean = np.average([g[layer].dense() for g in alone], axis=0, weights=sizes)
        np.testing.assert_allclose(found.dense(), mean, rtol=1e-5, atol=1e-9)


def test_a_run_is_the_same_twice_and_another_with_another_seed():
    def last(seed):
        return [theta.version for _, _, theta in run_of(settings(seed=seed), rounds=3)]

    assert last(0) == last(0)
    assert not set(last(0)) & set(last(1))


# Reclaiming


@pytest.mark.parametrize("reclaim", [False, True])
def test_useless_weights_are_reclaimed_if_so_asked(reclaim):
    """A layer's swaps take its useless weights first, whatever their magnitude."""
    pruning = {"reclaim": reclaim, "granularity": "entire", "r_stop": 10, "delta_r": 1}
    bench = lab(settings(pruning=pruning))
    server = bench.server
    mask = random_mask(server.param_spec, 0.1)
    server.theta = Theta(mask, np.ones(length(mask), np.float32))
    paths = mask.reachability(server.public.graph)
    values = server.theta.vector.copy()
    for layer in mask:  # so that by magnitude the useless ones would go last
        values[server.theta.places[layer]][~paths.useful(layer)] = 9
    server.theta = Theta(mask, values)
    useless = {layer: set(mask.indices(layer)[~paths.useful(layer)].tolist()) for layer in mask}
    assert any(useless.values())
    numbers = bench.method.score(server)[0].options["counts"]
    gradients = {
        layer: SparseVector(size, np.arange(size, dtype=np.int32), np.ones(size, np.float32))
        for layer, size in server.param_spec.sizes.items()
    }
    reducer = reducer_for("mean")
    reducer.add(Reply(0, 1, server.theta, gradients))
    changes = adjusted(bench.method, server, reducer.outcome({}, Traffic()))
    for layer, change in changes.items():
        taken = useless[layer] & set(change.dropped.tolist())
        others = mask.kept(layer) - len(useless[layer])
        expected = min(len(useless[layer]), numbers[layer])
        assert len(taken) == (expected if reclaim else max(0, numbers[layer] - others))
    assert server.theta.mask.counts == mask.counts
