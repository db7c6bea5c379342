"""Rate over rounds, decay apart from norms and FedProx: by hand, and the same on every engine."""

from dataclasses import replace

import numpy as np
import pytest

from fedtiny.devices.engine import under
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.devices.node import answer
from fedtiny.federation.messages import Request
from fedtiny.federation.verbs import PruneAndGrow, Train
from fedtiny.randomness import BEFORE_ROUNDS
from fedtiny.sparse.theta import Theta

from .gpu.rig import engine_of
from .tiny import lab, settings

SETTINGS = {
    "rate": {"lr_schedule": "cosine", "lr_warmup": 1},
    "decay": {"decay_norms": False, "weight_decay": 0.3},
    "proximal": {"proximal_mu": 1.0},
    "frozen": {"freeze_bn": 0.5},
    "all": {"lr_schedule": "steps", "decay_norms": False, "weight_decay": 0.3, "proximal_mu": 1.0},
}
ENGINES = {
    "reference": lambda bench: bench.engine,
    "native": lambda bench: NativeEngine(bench.spec),
    "gpu": engine_of,
}


def bench_of(optimizer="sgd", **train):
    return lab(settings(rounds=8, train={"optimizer": optimizer, **train}))


def trained(bench, engine="reference", round=5, epochs=2, received=None):
    made = ENGINES[engine](bench)
    made.load(bench.theta())
    received = bench.theta() if received is None else received
    made.train(bench.shards[0], bench.rng_key(0, round), epochs=epochs, received=received)
    return made.theta()


def distance(one, other):
    """Between what training changed, statistics of batch norm apart."""
    names = [name for name in one.places if name not in one.param_spec.statistics]
    return np.linalg.norm([np.linalg.norm(one.tensor(n) - other.tensor(n)) for n in names])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("engine", ["native", "gpu"])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_engine_follows_the_reference(name, engine, optimizer):
    bench = bench_of(optimizer, **SETTINGS[name])
    expected, found = trained(bench), trained(bench, engine)
    moved = distance(expected, bench.theta())
    assert distance(found, expected) < 0.02 * moved
    plain = trained(bench_of(optimizer), engine)
    assert distance(found, plain) > 0.05 * moved, "or the settings were not followed"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_rate_of_a_round_is_the_rate_times_its_factor(engine):
    scheduled = bench_of(lr=0.08, lr_schedule="steps", lr_milestones="2,3", lr_gamma=0.5)
    plain = bench_of(lr=0.02)
    np.testing.assert_allclose(
        trained(scheduled, engine).vector, trained(plain, engine).vector, rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_only_weights_of_layers_decay_if_norms_do_not(engine):
    """In one step of SGD a weight that decays is lower by lr x decay x weight."""
    shards = {"sizes": (4, 9, 21)}
    config = settings(train={"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0})
    without = lab(config, **shards)
    with_decay = replace(config.train, weight_decay=0.5, decay_norms=False)
    apart = lab(replace(config, train=with_decay), **shards)
    theta = without.theta()
    plain, decayed = trained(without, engine, epochs=1), trained(apart, engine, epochs=1)
    for name in theta.places:
        less = plain.tensor(name) - decayed.tensor(name)
        weights = theta.tensor(name).ndim > 1
        expected = 0.1 * 0.5 * theta.tensor(name) if weights else 0 * less
        np.testing.assert_allclose(less, expected, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_of_fedprox_is_that_of_sgd_and_mu_times_the_way_from_what_was_received(engine):
    """w1 = w0 - lr (g + mu (w0 - w_received)); statistics of batch norm are not pulled."""
    train = {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0}
    plain, proximal = (
        lab(settings(train=train | more), sizes=(4, 9, 21)) for more in ({}, {"proximal_mu": 0.5})
    )
    start = plain.theta()
    noise = np.random.default_rng(0).uniform(0, 1, len(start.vector)).astype(np.float32)
    received = Theta(start.mask, start.vector + noise)
    without = trained(plain, engine, epochs=1, received=received)
    found = trained(proximal, engine, epochs=1, received=received)
    away = Theta(start.mask, start.vector - received.vector)
    for name in start.places:
        statistic = name in start.param_spec.statistics
        expected = 0 if statistic else -0.1 * 0.5 * away.tensor(name)
        np.testing.assert_allclose(
            found.tensor(name) - without.tensor(name), expected, atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_fedprox_holds_a_device_near_what_it_received(engine):
    plain, proximal = bench_of(), bench_of(proximal_mu=1.0)
    away = [
        distance(trained(bench, engine, epochs=6), bench.theta()) for bench in (plain, proximal)
    ]
    assert away[1] < 0.8 * away[0]


@pytest.mark.parametrize("engine", ENGINES)
def test_without_what_was_received_there_is_no_pull(engine):
    plain, proximal = bench_of(), bench_of(proximal_mu=5.0)
    for bench in (plain, proximal):
        made = ENGINES[engine](bench)
        made.load(bench.theta())
        made.train(bench.shards[0], bench.rng_key(0, 5), epochs=2)
        bench.found = made.theta().vector
    np.testing.assert_allclose(proximal.found, plain.found, rtol=1e-6, atol=1e-7)


def test_pretraining_knows_neither_schedule_nor_fedprox():
    plain, other = bench_of(), bench_of(**SETTINGS["proximal"] | SETTINGS["rate"])
    for bench in (plain, other):
        bench.engine.load(bench.theta())
        bench.engine.train(bench.shards[0], bench.rng_key(0, BEFORE_ROUNDS), epochs=1)
    assert plain.engine.theta().version == other.engine.theta().version


@pytest.mark.parametrize("engine", ["native", "gpu"])
def test_a_device_that_changed_its_mask_is_still_held_to_what_it_received(engine):
    """FedDST: the second training of a program holds grown weights to zero, not to its start."""
    bench = bench_of(proximal_mu=5.0, lr=0.02)
    theta = bench.theta()
    counts = dict.fromkeys(bench.param_spec.prunable, 5)
    program = (Train(1), PruneAndGrow(counts), Train(2))
    order = Request("train", "feddst", 5, program, theta)
    expected, found = (
        answer(ENGINES[name](bench), order, bench.shards[2], seed=0).theta
        for name in ("reference", engine)
    )
    assert found.mask == expected.mask != theta.mask
    assert distance(found, expected) < 0.02 * distance(expected, under(expected.mask, theta))


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_batch_norm_keeps_the_statistics_that_were_received(engine):
    bench = bench_of(freeze_bn=0.5)
    theta, draw = bench.theta(), np.random.default_rng(3)
    measured = {
        n: draw.uniform(0.5, 2, bench.param_spec.dense[n]) for n in theta.param_spec.statistics
    }
    theta = theta.with_dense(measured)
    made = ENGINES[engine](bench)
    for round, stays in ((3, False), (4, True)):
        made.load(theta)
        made.train(bench.shards[0], bench.rng_key(0, round), epochs=1)
        found = made.theta()
        assert {np.array_equal(found.tensor(n), theta.tensor(n)) for n in measured} == {stays}


@pytest.mark.parametrize("engine", ["native", "gpu"])
def test_gradients_of_pruned_weights_see_frozen_batch_norm(engine):
    bench = bench_of(freeze_bn=0.5)
    positions = {n: np.arange(5) for n in bench.param_spec.prunable}
    found = {}
    for name in ("reference", engine):
        made = ENGINES[name](bench)
        for round in (3, 4):
            made.load(bench.theta())
            key = bench.rng_key(0, round)
            found[name, round] = made.gradients_at(bench.shards[0], key, positions=positions)
    for layer in positions:
        for round in (3, 4):
            expected = found["reference", round][layer]
            np.testing.assert_allclose(found[engine, round][layer], expected, rtol=1e-3, atol=1e-5)
        assert not np.allclose(found[engine, 3][layer], found[engine, 4][layer], rtol=0.05)
