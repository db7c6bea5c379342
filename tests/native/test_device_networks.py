"""The networks of devices on both engines: same candidates, same mask changes, no torch."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from fedtiny.federation.verbs import BnStatistics, shared_positions
from fedtiny.native.library import Options
from fedtiny.sparse.candidates import CandidatePool

from ..devices.tiny import lab, settings
from .device_networks import NETWORKS
from .test_engine import engine_of
from .twins import Twins, agree, batch, wake_norms


def network(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return wake_norms(NETWORKS[name]())


@pytest.fixture(params=NETWORKS)
def both(request):
    made = lab(settings(train={"optimizer": "sgd", "lr": 0.01}), model=network(request.param))
    native = engine_of(made, threads=2)
    for engine in (made.engine, native):
        engine.load(made.theta(0.5))
    return made, native


def test_training_follows_the_reference(both):
    made, native = both
    before = made.engine.theta().vector
    (expected, _), (found, _) = (
        engine.train(made.shards[2], made.rng_key(2), epochs=2) for engine in (made.engine, native)
    )
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    difference = native.theta().vector - made.engine.theta().vector
    moved = made.engine.theta().vector - before
    assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(moved)
    assert native.evaluate(made.shards[0]) == pytest.approx(
        made.engine.evaluate(made.shards[0]), rel=1e-3
    )


@pytest.mark.parametrize("fisher", [False, True])
def test_masks_change_alike(both, fisher):
    made, native = both
    counts = dict.fromkeys(made.param_spec.prunable, 5)
    place = made.shards[1], made.rng_key(1)
    expected, found = (
        engine.top_gradients(*place, counts=counts, fisher=fisher)
        for engine in (made.engine, native)
    )
    for name in counts:
        np.testing.assert_array_equal(found[name].indices, expected[name].indices)
        np.testing.assert_allclose(found[name].values, expected[name].values, rtol=2e-3)
    positions = shared_positions(made.theta(0.5).mask, counts, seed=3, round=2)
    expected, found = (
        engine.gradients_at(*place, positions=positions, fisher=fisher)
        for engine in (made.engine, native)
    )
    for name in counts:
        most = np.abs(expected[name]).max(initial=0)
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-3, atol=1e-4 * most)


def test_candidates_are_measured_alike(both):
    made, native = both
    sizes = np.array(list(made.param_spec.sizes.values()))
    pool = CandidatePool.cut(made.start, np.stack([sizes // 5, sizes // 2, sizes // 3]))
    how = BnStatistics(batch_size=8, passes=1, second_moment="var")
    for shard in made.shards:
        statistics = made.engine.bn_statistics(shard, pool, how)
        found = native.bn_statistics(shard, pool, how)
        assert found.keys() == statistics.keys()
        for name, values in statistics.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6)
        losses = made.engine.losses(shard, pool, statistics)
        measured = native.losses(shard, pool, statistics)
        np.testing.assert_allclose(measured, losses, rtol=1e-4)
        assert measured.argmin() == losses.argmin()


@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_was_planned_is_what_is_taken(name, storage):
    twins = Twins.make(network(name), (1, 8, 8), batch=4)
    for options in ({}, {"recompute": True}, {"top_count": 9}, {"remove_dead": True}):
        chosen = Options(batch=20, forward_batch=30, storage=storage, **options)
        planned = twins.native.plan(chosen)
        twins.native.prepare(chosen)
        assert bytes(twins.native.taken) == bytes(planned)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_number_of_threads_changes_no_bit(name):
    results = []
    for threads in (1, 3):
        twins = Twins.make(network(name), (1, 8, 8), batch=40, threads=threads)
        images, labels = batch(np.random.default_rng(0), 37, (1, 8, 8), 3)
        twins.native.train(images, labels, update=False)
        names = [name for name, _ in twins.torch.named_parameters()]
        results.append([*map(twins.native.gradient, names), twins.native.logits(images)])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
import numpy as np
from fedtiny.graph.ir import Graph
from fedtiny.native.library import Options, Rates
from fedtiny.native.model import NativeModel

model = NativeModel(Graph.from_plain(json.load(sys.stdin)))
model.prepare(Options(batch=8, top_count=3))
draw = np.random.default_rng(0)
for name in model.tensors:
    values = draw.standard_normal(model.size(name)) * 0.1
    model.set(name, np.abs(values) if name.endswith("running_var") else values)
model.start(Rates(lr=0.1))
images = draw.standard_normal((8, 1, 8, 8)).astype(np.float32)
labels = draw.integers(0, 3, 8)
losses = [model.train(images, labels).loss for _ in range(30)]
print(json.dumps([losses[0], losses[-1], [m for m in sys.modules if m.startswith("torch.")]]))
"""


@pytest.mark.parametrize("name", NETWORKS)
def test_no_operation_needs_torch(name):
    graph = Twins.make(network(name), (1, 8, 8), batch=4).native.graph
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=json.dumps(graph.to_plain()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    first, last, torches = json.loads(run.stdout)
    assert last < 0.9 * first
    assert torches == []


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_agree_with_torch(name):
    twins = Twins.make(network(name), (1, 8, 8), batch=16, threads=2, input_gradient=True)
    images, labels = batch(np.random.default_rng(0), 13, (1, 8, 8), 3)
    noise = twins.noise(images, labels)
    agree(twins.gradients(images, labels), 1e-4, noise)
