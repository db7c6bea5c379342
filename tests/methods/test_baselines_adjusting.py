"""PruneFL, FedDST and LotteryFL: what devices are asked, what they send, what the server does."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from fedtiny import methods
from fedtiny.config import Config, DataConfig, resolve
from fedtiny.devices.batches import training_batches
from fedtiny.devices.node import answer
from fedtiny.errors import ConfigError
from fedtiny.federation.messages import Reply, Request, prune_and_grow, train
from fedtiny.federation.rounds import federate, play_round, prepare
from fedtiny.federation.server import Server
from fedtiny.federation.transport import ABSENT
from fedtiny.methods.lotteryfl import INITIAL
from fedtiny.models.param_spec import ParamSpec
from fedtiny.runs.checkpoint import load_checkpoint, save_checkpoint
from fedtiny.runs.folder import RunFolder
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.schedule import Schedule
from fedtiny.sparse.theta import Theta, length

from ..devices.tiny import lab, settings
from ..federation.fakes import FakeTransport

ANATOMY = ParamSpec(
    prunable={"a": (10,), "b": (2, 10)},
    dense={"bias": (2,)},
    blocks=(("a",), ("b",)),
    norms=(),
    input_layer="first",
    output_layer="last",
)
FULL = Mask.full(ANATOMY)


def config_of(method, **changes):
    pruning = {"delta_r": 2, "r_stop": 4} | changes.pop("pruning", {})
    changes = {"density": 0.4, "rounds": 20} | changes
    return settings(method=method, pruning=pruning, **changes)


def server_of(config, answer=None, mask=FULL, values=None):
    """A server of a tiny model whose devices answer as they are told, and its method."""
    values = np.arange(1, length(mask) + 1) if values is None else np.asarray(values)
    theta = Theta(mask, values.astype(np.float32))
    return Server(config, FakeTransport(answer=answer), theta), methods.create(config)


def programs(method, rounds=7, **changes):
    """What devices are asked to do in each round."""
    server, made = server_of(config_of(method, **changes))
    prepare(server, made)
    for _ in range(rounds):
        program = made.train_locally(server) + made.score(server)
        server.round += 1
        yield program


# PruneFL


def test_prunefl_starts_from_magnitudes():
    server, method = server_of(config_of("prunefl"))
    prepare(server, method)
    assert server.theta.mask.indices("a").tolist() == [6, 7, 8, 9]
    assert server.theta.mask.indices("b").tolist() == list(range(12, 20))
    assert server.transport.asked == []


def test_prunefl_asks_for_full_gradients_in_adjusting_rounds_only():
    """With delta_r 2 and r_stop 4: rounds 0 and 2; in round 4 there is nothing left to swap."""
    found = list(programs("prunefl", train={"local_epochs": 3}))
    full, plain = (train(3, sum_dense_gradients=True),), (train(3),)
    assert found == [full, plain, full, plain, plain, plain, plain]


@pytest.fixture(scope="module")
def prunefl_bench():
    """Plain images and steps too small to see, so that gradients can be taken afterwards."""
    config = settings(method="prunefl", train={"lr": 1e-12, "batch_size": 4, "local_epochs": 2})
    return lab(config, sizes=(4, 9, 8), augment=False)


def gradient_by_hand(bench, theta, samples):
    """The gradient of one batch in training mode, of pruned weights too."""
    bench.engine.load(theta)
    inputs, labels = bench.engine.inputs(bench.data.train, samples)
    weights = bench.engine.prunable()
    loss = F.cross_entropy(bench.model.train()(inputs), labels)
    found = torch.autograd.grad(loss, list(weights.values()))
    return {name: g.numpy() for name, g in zip(weights, found, strict=True)}


@pytest.mark.parametrize(("device", "batches"), [(0, 1), (1, 2), (2, 2)])
def test_a_device_sends_the_mean_of_every_batch_s_full_gradient(prunefl_bench, device, batches):
    """Two epochs of one or two batches of four; a ninth sample is left over."""
    bench, theta = prunefl_bench, prunefl_bench.theta(0.2)
    order = bench.rng_key(device).generator("permutation")
    shuffled = [order.permutation(bench.shards[device].indices) for _ in range(2)]
    parts = [epoch[4 * b : 4 * b + 4] for epoch in shuffled for b in range(batches)]
    by_hand = [gradient_by_hand(bench, theta, part) for part in parts]
    request = Request("train", "prunefl", 0, (train(2, sum_dense_gradients=True),), theta)
    reply = answer(bench.engine, request, bench.shards[device], bench.config.seed)
    assert list(reply.arrays) == list(bench.param_spec.prunable)
    assert reply.gradients == {}
    for layer, sent in reply.arrays.items():
        mean = np.mean([gradient[layer] for gradient in by_hand], axis=0)
        np.testing.assert_allclose(sent, mean, rtol=1e-3, atol=1e-6)
        assert (sent[~theta.mask.array(layer)] != 0).any(), "pruned weights too"


def test_a_plain_round_sends_no_gradient(prunefl_bench):
    request = Request("train", "prunefl", 1, (train(1),), prunefl_bench.theta(0.2))
    reply = answer(prunefl_bench.engine, request, prunefl_bench.shards[0], 0)
    assert reply.arrays == {}
    assert reply.theta.mask == request.theta.mask


def test_gradients_of_pruned_weights_do_not_leak_into_training(prunefl_bench):
    """A model trained while its full gradients are summed is the model trained plainly."""
    theta = prunefl_bench.theta(0.2)
    trained = [
        answer(
            prunefl_bench.engine,
            Request("train", "prunefl", 0, (train(2, sum_dense_gradients=full),), theta),
            prunefl_bench.shards[1],
            0,
        ).theta.version
        for full in (False, True)
    ]
    assert trained[0] == trained[1]


def gradients(a, b):
    return {"a": np.asarray(a, np.float32), "b": np.asarray(b, np.float32).reshape(2, 10)}


def test_prunefl_swaps_in_all_layers_by_the_square_of_the_averaged_gradient():
    """Kept are 6..9 of a and 12..19 of b: one weight of a and two of b are swapped."""
    a = {0: [0, 4, 0, 0, 0, -5, 9, 9, 9, 9], 1: [0, 4, 0, 0, 0, -6, 9, 9, 9, 9]}
    b = {0: np.arange(20), 1: -np.arange(20)}
    b[1][3], b[1][11] = 30, 40  # 3 and 11 are the two that do not cancel out

    def devices(device, request):
        if device == 2:
            return "out of reach"
        return Reply(device, 1, request.theta, arrays=gradients(a[device], b[device]))

    server, method = server_of(config_of("prunefl"), devices)
    prepare(server, method)
    before = server.theta
    result = play_round(server, method)
    assert {layer: len(change) for layer, change in result.changes.items()} == {"a": 1, "b": 2}
    assert server.theta.mask.indices("a").tolist() == [5, 7, 8, 9]
    assert server.theta.mask.indices("b").tolist() == [3, 11, *range(14, 20)]
    assert server.theta.kept("a").tolist() == [0, *before.kept("a")[1:]]


def test_prunefl_adjusts_all_layers_at_every_event():
    bench = lab(config_of("prunefl", density=0.2))
    changed = [set(result.changes) for result in federate(bench.server, bench.method, 5)]
    every = set(bench.param_spec.prunable)
    assert changed == [every, set(), every, set(), set()]


# FedDST


@pytest.mark.parametrize(
    ("epochs", "before", "after"), [(5, 3, 2), (1, 0, 1), (2, 1, 1), (3, 2, 1), (4, 2, 2)]
)
def test_feddst_trains_swaps_and_trains_on(epochs, before, after):
    server, method = server_of(config_of("feddst", train={"local_epochs": epochs}))
    prepare(server, method)
    exchange = prune_and_grow({"a": 1, "b": 2}, server.config.pruning.gradient_epsilon)
    assert method.train_locally(server) == (train(before), exchange, train(after))


def test_feddst_trains_plainly_in_between_and_in_the_end():
    found = [len(program) for program in programs("feddst", train={"local_epochs": 5})]
    assert found == [3, 1, 3, 1, 1, 1, 1]
    assert list(programs("feddst", rounds=2, train={"local_epochs": 5}))[1] == (train(5),)


def random_masks(seeds):
    for seed in seeds:
        server, method = server_of(config_of("feddst", seed=seed))
        prepare(server, method)
        yield server.theta


def test_feddst_s_first_mask_is_fixed_by_the_seed():
    one, same, other = random_masks([0, 0, 1])
    assert one.version == same.version
    assert one.mask != other.mask
    assert list(one.mask.counts.values()) == uniform(ANATOMY, 0.4).tolist() == [4, 8]
    assert np.array_equal(one.kept("a"), one.mask.indices("a") + 1), "the pretrained values"


def test_feddst_s_first_mask_favours_no_weight():
    """Over 400 seeds each weight is kept 160 times, give or take four standard deviations."""
    times = np.zeros(30)
    for theta in random_masks(range(400)):
        times += np.concatenate([theta.mask.array(layer).ravel() for layer in theta.mask])
    assert abs(times - 160).max() < 4 * np.sqrt(400 * 0.4 * 0.6)


def replies_of(masks, values, samples):
    """Devices that send these kept values of layer a; of b they send what they got."""

    def devices(device, request):
        mask = request.theta.mask.replace({"a": masks[device]})
        theta = request.theta.remasked(mask)
        vector = theta.vector.copy()
        vector[theta.places["a"]] = values[device]
        return Reply(device, samples[device], Theta(mask, vector))

    return devices


def test_feddst_averages_over_holders_and_prunes_back():
    """One, two and three samples. Weight 0 is held by devices 0 and 2, weight 7 by all, and so on;
    of the six weights that anybody holds the four largest stay."""
    masks = [[0, 1, 6, 7], [1, 2, 6, 7], [0, 2, 7, 9]]
    values = [[9, -8, 1, 1], [1, 30, -2, 4], [5, -20, 2, 0.5]]
    server, method = server_of(config_of("feddst"), replies_of(masks, values, [1, 2, 3]))
    prepare(server, method)
    outcome = server.ask("train", method.train_locally(server), reducer=method.reducer)
    expected = {
        0: (1 * 9 + 3 * 5) / 4,
        1: (1 * -8 + 2 * 1) / 3,
        2: (2 * 30 + 3 * -20) / 5,
        6: (1 * 1 + 2 * -2) / 3,
        7: (1 * 1 + 2 * 4 + 3 * 2) / 6,
        9: 0.5,
    }
    assert outcome.theta.mask.indices("a").tolist() == list(expected)
    np.testing.assert_allclose(outcome.theta.kept("a"), list(expected.values()), rtol=1e-6)
    theta = method.aggregate(server, outcome)
    assert theta.mask.indices("a").tolist() == [0, 1, 6, 7]
    assert theta.mask.counts == server.theta.mask.counts
    np.testing.assert_allclose(theta.kept("a"), [6, -2, -1, 2.5], rtol=1e-6)


def test_a_mean_over_holders_weighs_dense_values_by_all_devices():
    masks, samples = [[0, 1, 2, 3]] * 3, [1, 2, 3]
    plain = replies_of(masks, [[1, 1, 1, 1]] * 3, samples)

    def devices(device, request):
        reply = plain(device, request)
        bias = np.full(2, float(device), np.float32)
        return replace(reply, theta=reply.theta.with_dense({"bias": bias}))

    server, method = server_of(config_of("feddst"), devices)
    prepare(server, method)
    play_round(server, method)
    np.testing.assert_allclose(server.theta.tensor("bias"), (0 * 1 + 1 * 2 + 2 * 3) / 6)


class Watched:
    """An engine whose trainings are written down: when, and with which first batch."""

    def __init__(self, engine):
        self.engine = engine
        self.trained = []
        self.loaded = []

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def train(self, shard, rng_key, **options):
        most = self.engine.config.batch_size
        first = next(training_batches(shard, rng_key, self.engine.transform, epochs=1, most=most))
        self.trained.append((rng_key.part, first[0].tolist(), first[1].crops.tolist()))
        return self.engine.train(shard, rng_key, **options)


def swapped(bench, epochs, layer_numbers, device=2):
    engine = Watched(bench.engine)
    before, after = epochs
    program = (train(before), prune_and_grow(layer_numbers), train(after))
    request = Request("train", "feddst", 0, program, bench.theta(0.2))
    return engine, request, answer(engine, request, bench.shards[device], bench.config.seed)


def test_the_second_training_draws_anew():
    engine, _, _ = swapped(lab(), (1, 1), {"conv1.weight": 5})
    (one, batch, crops), (two, other_batch, other_crops) = engine.trained
    assert (one, two) == (0, 1)
    assert batch != other_batch
    assert crops != other_crops


def test_a_device_changes_its_own_mask_and_trains_what_it_grew():
    numbers = {"conv1.weight": 5, "conv2.weight": 9, "hidden.weight": 2}
    _, request, reply = swapped(lab(), (1, 1), numbers)
    for layer, number in numbers.items():
        old, new = request.theta.mask.indices(layer), reply.theta.mask.indices(layer)
        grown = np.setdiff1d(new, old)
        assert len(grown) == len(np.setdiff1d(old, new)) == number
        assert (reply.theta.tensor(layer).ravel()[grown] != 0).all()


def test_with_one_epoch_a_device_swaps_before_it_trains():
    """Weights grown after the last step would be zero and never survive the server."""
    numbers = {"conv2.weight": 9}
    _, request, reply = swapped(lab(), (0, 1), numbers)
    grown = np.setdiff1d(
        reply.theta.mask.indices("conv2.weight"), request.theta.mask.indices("conv2.weight")
    )
    assert len(grown) == 9
    assert (reply.theta.tensor("conv2.weight").ravel()[grown] != 0).all()
    assert reply.metrics["loss"] > 0


def test_feddst_s_devices_differ_and_the_server_keeps_the_layer_counts():
    bench = lab(config_of("feddst", density=0.2))
    seen, plain = [], bench.transport.executor.answers

    def spy(jobs):
        for reply in plain(jobs):
            seen.append(reply.theta.mask)
            yield reply

    bench.transport.executor.answers = spy
    prepare(bench.server, bench.method)
    first = bench.server.theta.mask
    for _ in federate(bench.server, bench.method, 3):
        assert bench.server.theta.mask.counts == first.counts
    assert len(set(seen[:3])) == 3, "round 0 adjusts"
    assert len(set(seen[3:6])) == 1, "round 1 does not"
    assert bench.server.theta.mask != first


# LotteryFL


def lottery(rounds, answer=None, **changes):
    server, method = server_of(config_of("lotteryfl", **changes), answer)
    prepare(server, method)
    densities = [server.theta.mask.density]
    for _ in range(rounds):
        play_round(server, method)
        densities.append(server.theta.mask.density)
    return server, method, densities


def test_lotteryfl_starts_dense():
    _, method, densities = lottery(0)
    assert densities == [1]
    assert method.density_limit(0) == 1


def test_lotteryfl_reaches_the_target_at_r_stop_by_equal_factors():
    """Three prunings to an eighth: a half, a quarter, an eighth, at rounds 2, 4 and 6."""
    pruning = {"delta_r": 2, "r_stop": 6}
    _, method, densities = lottery(9, density=0.2, pruning=pruning)
    third = 0.2 ** (1 / 3)
    steps = [int(30 * third), int(30 * third**2), 6]
    expected = [30, 30, 30, *steps[:1] * 2, *steps[1:2] * 2, *steps[2:] * 3]
    assert [round(density * 30) for density in densities] == expected
    limits = [method.density_limit(round) for round in range(9)]
    assert limits == pytest.approx([1, 1, third, third, third**2, third**2, 0.2, 0.2, 0.2])


def changing(device, request):
    """Devices that send their weights back in reverse, and the rest as it was plus one."""
    theta = request.theta
    vector = np.concatenate([theta.vector[: theta.mask.count][::-1], theta.vector[-2:] + 1])
    return Reply(device, 1, Theta(theta.mask, vector))


def test_lotteryfl_prunes_by_trained_magnitudes_and_rewinds_exactly():
    server, method, _ = lottery(2, changing, pruning={"delta_r": 2, "r_stop": 2})
    initial = Theta(FULL, server.arrays[INITIAL])
    assert initial.vector.tolist() == list(range(1, 33))
    trained = server.theta
    play_round(server, method)
    ticket = server.theta.mask
    assert ticket.count == 12
    counts = uniform(ANATOMY, 0.4)
    last = changing(0, Request("train", "lotteryfl", 2, (), trained)).theta
    for layer, count in zip(ticket, counts, strict=True):
        highest = np.sort(np.argsort(-np.abs(last.kept(layer)))[:count])
        assert ticket.indices(layer).tolist() == highest.tolist()
    assert server.theta.version == initial.remasked(ticket).version
    assert server.theta.tensor("bias").tolist() == [31, 32], "dense values are rewound too"


def test_lotteryfl_rewinds_at_every_event_and_trains_in_between():
    server, method, _ = lottery(0, changing, pruning={"delta_r": 1, "r_stop": 2})
    initial = Theta(FULL, server.arrays[INITIAL])
    rewound = []
    for _ in range(5):
        play_round(server, method)
        same = initial.remasked(server.theta.mask)
        rewound.append(server.theta.version == same.version)
    assert rewound == [False, True, True, False, False]


def test_lotteryfl_s_initial_values_survive_a_checkpoint(tmp_path):
    server, method, _ = lottery(3, changing)
    folder = RunFolder(tmp_path)
    save_checkpoint(folder, server)
    config = server.config
    again, other = server_of(config, changing, values=np.zeros(32))
    again.transport.restore = lambda *_: None
    load_checkpoint(folder, again)
    assert again.arrays.keys() == {INITIAL}
    assert again.arrays[INITIAL].tobytes() == server.arrays[INITIAL].tobytes()
    for each, made in ((server, method), (again, other)):
        play_round(each, made)
        play_round(each, made)
    assert again.round == 5
    assert again.theta.version == server.theta.version


def test_lotteryfl_prunes_in_the_next_round_where_nobody_answered():
    def devices(device, request):
        return ABSENT if request.round == 2 else changing(device, request)

    _, _, densities = lottery(6, devices)
    halfway = int(30 * 0.4**0.5) / 30
    assert densities == pytest.approx([1, 1, 1, 1, halfway, 0.4, 0.4])


def test_lotteryfl_rewinds_once_an_event_whatever_the_rounding():
    hundred = replace(ANATOMY, prunable={"a": (50,), "b": (5, 10)})
    config = config_of("lotteryfl", density=0.729, pruning={"delta_r": 4, "r_stop": 12})
    server, method = server_of(config, changing, Mask.full(hundred))
    prepare(server, method)
    initial = Theta(Mask.full(hundred), server.arrays[INITIAL])
    rewound = []
    for _ in range(12):
        play_round(server, method)
        rewound.append(server.theta.version == initial.remasked(server.theta.mask).version)
    assert [round for round, again in enumerate(rewound) if again] == [4, 8]


def short(rounds):
    """LotteryFL with the paper's schedule, but only so many rounds."""
    return resolve(Config(method="lotteryfl", rounds=rounds, data=DataConfig(name="cifar10")))


@pytest.mark.parametrize("rounds", [2, 9])
def test_lotteryfl_reaches_its_target_in_a_short_run(rounds):
    method = methods.create(short(rounds))
    assert method.density_limit(rounds - 1) == pytest.approx(0.05)


def test_lotteryfl_refuses_a_run_that_ends_before_its_target():
    with pytest.raises(ConfigError, match="only in round 2, after the last"):
        methods.create(replace(short(1), density=0.4)).check(ANATOMY)


@pytest.mark.parametrize("rounds", [30, 100, 300])
def test_lotteryfl_reaches_its_target_with_the_paper_s_schedule(rounds):
    config = short(rounds)
    method = methods.create(config)
    assert method.density_limit(config.pruning.r_stop) == pytest.approx(0.05)
    assert config.pruning.r_stop < rounds


# The schedule they share


@pytest.mark.parametrize("method", ["prunefl", "feddst"])
def test_they_take_all_layers_and_fedtiny_s_numbers(method):
    config = config_of(method, pruning={"granularity": "layer"})
    made, plain = methods.create(config), Schedule(2, 4, "entire")
    mask = Mask(ANATOMY, {"a": np.arange(4), "b": np.arange(8)})
    for round in range(6):
        numbers = partial(plain.pruning_numbers, mask, round)
        assert made.schedule.pruning_numbers(mask, round) == numbers()
