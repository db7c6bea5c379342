"""What the GPU's engine measures against the reference engine, in fp32 on a CPU."""

import numpy as np
import pytest
import torch

from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.gpu import engine as gpu_engine
from fedtiny.devices.node import answer
from fedtiny.federation.messages import (
    bn_statistics,
    evaluate,
    losses,
    pool_arrays,
    shared_gradients,
    top_gradients,
    train,
)
from fedtiny.randomness import SERVER

from ..tiny import TinyNet, lab, seeded, settings
from .rig import NETWORKS, answers, assert_near, both, engine_of, order, pool_of, select

OPTIMIZERS = ["adam", "sgd"]


@pytest.mark.parametrize("count", [1, 7, 10_000])
@pytest.mark.parametrize("channels_last", [True, False])
def test_the_top_gradients_are_the_reference_s(count, channels_last):
    bench = lab()
    request = order(bench, top_gradients(dict.fromkeys(bench.param_spec.prunable, count)))
    theirs, ours = answers(bench, request, device=2, channels_last=channels_last)
    assert_near(ours, theirs, atol=1e-6)
    assert ours.theta is theirs.theta is None


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_top_gradients_of_any_network_are_the_reference_s(kind):
    bench = lab(model=seeded(NETWORKS[kind]))
    request = order(bench, train(1), top_gradients(dict.fromkeys(bench.param_spec.prunable, 4)))
    theirs, ours = answers(bench, request, device=1)
    assert_near(ours, theirs)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("how", [{"fisher": True}, {"votes": True}])
def test_fisher_scores_and_votes_are_the_reference_s(how, channels_last):
    bench = lab()
    counts = dict.fromkeys(bench.param_spec.prunable, 7)
    request = order(bench, train(1), top_gradients(counts, 0.01, **how))
    theirs, ours = answers(bench, request, device=2, channels_last=channels_last)
    assert_near(ours, theirs)


@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_at_shared_positions_are_the_reference_s(kind):
    bench = lab(model=seeded(NETWORKS[kind]))
    counts = dict.fromkeys(bench.param_spec.prunable, 3)
    request = order(bench, train(1), shared_gradients(counts, 0.01, seed=5), round=2)
    theirs, ours = answers(bench, request, device=1)
    assert_near(ours, theirs)
    assert {layer: values.shape for layer, values in ours.arrays.items()} == dict.fromkeys(
        counts, (3,)
    )


def test_measuring_gradients_changes_nothing():
    bench = lab(model=seeded(TinyNet, 0.5))
    engine, theta = engine_of(bench), bench.theta()
    engine.load(theta)
    counts = {"conv1.weight": 5}
    first = engine.top_gradients(bench.shards[0], bench.rng_key(), counts=counts)
    assert engine.theta().version == theta.version
    again = engine.top_gradients(bench.shards[0], bench.rng_key(), counts=counts)
    assert first["conv1.weight"].dense().tobytes() == again["conv1.weight"].dense().tobytes()
    plain, measured = (
        answer(engine_of(bench), order(bench, *program), bench.shards[0], 0).theta.version
        for program in ((train(1),), (top_gradients(counts), train(1)))
    )
    assert plain == measured


MEASUREMENTS = {
    "one batch": {"batch_size": 128},
    "several batches": {"batch_size": 4},
    "two passes": {"batch_size": 4, "passes": 2},
    "exact": {"batch_size": 4, "second_moment": "square"},
}


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_statistics_of_every_candidate_are_the_reference_s(name):
    bench = lab()
    request = select(bench, bn_statistics(**MEASUREMENTS[name]))
    theirs, ours = answers(bench, request, device=2)
    assert_near(ours, theirs, atol=1e-6)
    second = "running_square" if name == "exact" else "running_var"
    assert ours.arrays[f"bn1.{second}"].shape == (3, 8)


def test_losses_of_every_candidate_are_the_reference_s():
    bench = lab()
    measured = answer(bench.engine, select(bench, bn_statistics(128)), bench.shards[1], 0).arrays
    request = select(bench, losses(), arrays=measured)
    theirs, ours = answers(bench, request, device=2)
    assert_near(ours, theirs)
    assert len(set(ours.arrays["losses"].tolist())) == 3


def test_losses_without_new_statistics_are_the_reference_s():
    bench = lab()
    theirs, ours = answers(bench, select(bench, losses()), device=2)
    assert_near(ours, theirs)


def test_candidates_are_brought_to_the_gpu_once_for_all_devices(monkeypatch):
    bench = lab()
    engine, request = engine_of(bench), select(bench, bn_statistics(128))
    placed, place = [], engine.network.place
    monkeypatch.setattr(engine.network, "place", lambda *given: placed.append(1) or place(*given))
    for shard in bench.shards:
        answer(engine, request, shard, 0)
    assert len(placed) == 1 + 3  # the pool's own theta, and each candidate
    assert engine.shared.pool is not None
    answer(engine, order(bench, train(1)), bench.shards[0], 0)
    assert engine.shared.pool is None, "selection is over, its memory is given back"


@pytest.mark.parametrize("part", [None, 5])
def test_evaluation_is_the_reference_s(monkeypatch, part):
    if part:
        monkeypatch.setattr(gpu_engine, "EVALUATION_BATCH", part)
    bench = lab()
    theirs, ours = answers(bench, order(bench, evaluate()), device=2)
    assert ours.metrics["accuracy"] == theirs.metrics["accuracy"]
    assert_near(ours, theirs)


def test_evaluation_and_measurement_change_no_weight():
    bench = lab(model=seeded(TinyNet, 0.5))
    engine, theta = engine_of(bench), bench.theta()
    engine.load(theta)
    engine.evaluate(bench.shards[0])
    assert engine.theta().version == theta.version


def test_laid_out_as_on_the_reference_measurements_are_the_reference_s_to_the_last_bit():
    bench = lab()
    request = select(bench, bn_statistics(4), losses())
    theirs, ours = answers(bench, request, device=2, channels_last=False)
    for name, values in theirs.arrays.items():
        assert np.array_equal(ours.arrays[name], values), name


def test_a_shard_of_the_test_set_is_found_too():
    bench = lab()
    every = np.arange(len(bench.data.test))
    test = DeviceData(SERVER - 1, bench.data.test, every, every)
    theirs, ours = (answer(e, order(bench, evaluate()), test, 0) for e in both(bench))
    assert_near(ours, theirs)


# Reduced precision


def test_half_precision_runs_and_is_near():
    bench = lab(settings(train={"local_epochs": 2}), sizes=(40, 12))
    pool = pool_of(bench)
    counts = dict.fromkeys(bench.param_spec.prunable, 6)
    programs = {
        "train": order(bench, train(2, sum_dense_gradients=True), evaluate()),
        "gradients": order(bench, top_gradients(counts)),
        "statistics": select(bench, bn_statistics(128)),
        "exact": select(bench, bn_statistics(128, second_moment="square")),
        "losses": order(bench, losses(), theta=pool.theta, arrays=pool_arrays(pool.counts)),
    }
    for name, request in programs.items():
        theirs, ours = answers(bench, request, dtype=torch.bfloat16)
        for key, value in theirs.metrics.items():
            assert ours.metrics[key] == pytest.approx(value, rel=0.05, abs=0.05), (name, key)
        for key, values in theirs.arrays.items():
            found = ours.arrays[key]
            assert found.dtype == np.float32
            assert np.linalg.norm(found - values) < 0.1 * np.linalg.norm(values), (name, key)
        for key, top in theirs.gradients.items():
            shared = np.intersect1d(ours.gradients[key].indices, top.indices)
            assert len(shared) >= 4, key
        if theirs.theta is not None:
            moved = theirs.theta.vector - request.theta.vector
            off = ours.theta.vector - theirs.theta.vector
            assert np.linalg.norm(off) < 0.5 * np.linalg.norm(moved)
