"""The native engine beside the reference: same verbs, same batches, nearly same numbers."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedtiny.data.transforms import ArrayTransform
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.devices.node import answer
from fedtiny.devices.torch_layers import Transform
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Request
from fedtiny.federation.verbs import (
    BnStatistics,
    CongruentSwap,
    DropScores,
    Sensitivity,
    shared_positions,
)
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.congruity import packed_directions

from ..devices.tiny import Lab, PlainNet, TinyNet, lab, seeded, settings


def engine_of(lab: Lab, budget: int = 0, threads: int = 1, **choices) -> NativeEngine:
    config = replace(lab.config, threads=threads, device=replace(lab.config.device, **choices))
    if budget:
        config = replace(config, memory_budget=str(budget), memory_model="device")
    return NativeEngine(replace(lab.spec, config=config))


@pytest.fixture(params=["sgd", "adam"])
def both(request):
    made = lab(settings(train={"optimizer": request.param}))
    return made, engine_of(made, threads=2)


def test_what_is_loaded_comes_back(both):
    made, native = both
    for seed in range(3):
        theta = made.theta(seed=seed)
        native.load(theta)
        assert native.theta().mask == theta.mask
        np.testing.assert_array_equal(native.theta().vector, theta.vector)


def test_training_follows_the_reference(both):
    made, native = both
    for engine in (made.engine, native):
        engine.load(made.theta())
    expected, _ = made.engine.train(made.shards[2], made.rng_key(2), epochs=2)
    found, _ = native.train(made.shards[2], made.rng_key(2), epochs=2)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    difference = native.theta().vector - made.engine.theta().vector
    moved = made.engine.theta().vector - made.theta().vector
    assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(moved)


def test_dense_gradients_are_added_up(both):
    made, native = both
    for engine in (made.engine, native):
        engine.load(made.theta())
    arguments = {"epochs": 1, "sum_dense_gradients": True}
    _, expected = made.engine.train(made.shards[0], made.rng_key(), **arguments)
    _, found = native.train(made.shards[0], made.rng_key(), **arguments)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert found[name].shape == gradient.shape
        np.testing.assert_allclose(found[name], gradient, atol=1e-3 * np.abs(gradient).max())


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_top_gradients_are_the_references(both, epsilon):
    made, native = both
    counts = dict.fromkeys(made.param_spec.prunable, 7)
    for engine in (made.engine, native):
        engine.load(made.theta())
    before = native.theta().vector
    for device in range(3):
        place = made.shards[device], made.rng_key(device)
        expected, found = (
            engine.top_gradients(*place, counts=counts, epsilon=epsilon)
            for engine in (made.engine, native)
        )
        for name in counts:
            np.testing.assert_array_equal(found[name].indices, expected[name].indices)
            np.testing.assert_allclose(found[name].values, expected[name].values, rtol=1e-3)
    np.testing.assert_array_equal(native.theta().vector, before)


def test_fisher_scores_are_the_references(both):
    made, native = both
    counts = dict.fromkeys(made.param_spec.prunable, 7)
    for engine in (made.engine, native):
        engine.load(made.theta())
    place = made.shards[1], made.rng_key(1)
    expected, found = (
        engine.top_gradients(*place, counts=counts, epsilon=0.01, fisher=True)
        for engine in (made.engine, native)
    )
    for name in counts:
        np.testing.assert_array_equal(found[name].indices, expected[name].indices)
        np.testing.assert_allclose(found[name].values, expected[name].values, rtol=1e-3)


def test_gradients_at_positions_are_the_references(both):
    made, native = both
    theta = made.theta()
    counts = dict.fromkeys(made.param_spec.prunable, 9)
    positions = shared_positions(theta.mask, counts, seed=3, round=2)
    for engine in (made.engine, native):
        engine.load(theta)
    place = made.shards[1], made.rng_key(1)
    expected, found = (
        engine.gradients_at(*place, positions=positions, epsilon=0.01)
        for engine in (made.engine, native)
    )
    for name in counts:
        most = np.abs(expected[name]).max()
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-4 * most)


@pytest.mark.slow
@pytest.mark.parametrize(("passes", "second_moment"), [(1, "var"), (3, "var"), (1, "square")])
@pytest.mark.parametrize("batch_size", [3, 128])
def test_selection_measures_the_same(both, passes, second_moment, batch_size):
    made, native = both
    sizes = np.array(list(made.param_spec.sizes.values()))
    pool = CandidatePool.cut(made.start, np.stack([sizes // 5, sizes // 2, sizes // 9]))
    how = BnStatistics(batch_size, passes, second_moment)
    for shard in made.shards:
        expected = made.engine.bn_statistics(shard, pool, how)
        found = native.bn_statistics(shard, pool, how)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-6)
        if second_moment == "var":
            losses = made.engine.losses(shard, pool, expected)
            np.testing.assert_allclose(native.losses(shard, pool, expected), losses, rtol=1e-4)


def test_evaluation_agrees(both):
    made, native = both
    for engine in (made.engine, native):
        engine.load(made.theta())
    for shard in made.shards:
        assert native.evaluate(shard) == pytest.approx(made.engine.evaluate(shard), rel=1e-4)


def test_a_network_without_batch_norm():
    made = lab(model=seeded(PlainNet))
    native = engine_of(made)
    for engine in (made.engine, native):
        engine.load(made.theta())
    expected, _ = made.engine.train(made.shards[0], made.rng_key(), epochs=1)
    found, _ = native.train(made.shards[0], made.rng_key(), epochs=1)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_dropout_repeats_by_its_moment():
    made = lab(model=seeded(TinyNet, 0.5))
    native = engine_of(made)
    results = []
    for round in (0, 0, 1):
        native.load(made.theta())
        native.train(made.shards[0], made.rng_key(round=round), epochs=1)
        results.append(native.theta().vector)
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_what_diverges_says_so():
    made = lab(settings(train={"optimizer": "sgd", "lr": 1e30}))
    native = engine_of(made)
    native.load(made.theta())
    with pytest.raises(FedTinyError, match="diverged on device 1"):
        native.train(made.shards[1], made.rng_key(1), epochs=5)


def test_a_budget_that_is_too_small_is_refused():
    made = lab()
    with pytest.raises(FedTinyError, match="more than the budget"):
        engine_of(made, budget=10_000).load(made.theta())


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("changes", [{}, {"crop_padding": 2, "flips": True}, {"cutout": 3}])
def test_images_are_prepared_to_the_bit(changes, dtype):
    import torch

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (9, 3, 8, 6)).astype(dtype)
    given = {"mean": (0.4, 0.5, 0.3), "std": (0.2, 0.1, 0.3), **changes}
    ours, theirs = ArrayTransform(**given), Transform(**given)
    draws = ours.draws(np.random.default_rng(1), 9)
    tensor = torch.from_numpy(images)
    np.testing.assert_array_equal(ours.normalise(images), theirs.normalise(tensor).numpy())
    np.testing.assert_array_equal(
        ours.augment(images, draws), theirs.augment(tensor, draws).numpy()
    )


def test_the_engine_imports_no_torch():
    code = "import sys, fedtiny.devices.native_engine; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_dead_channels_are_there_when_gradients_need_them():
    made = lab()
    lean, whole = engine_of(made, remove_dead=True), engine_of(made)
    counts = dict.fromkeys(made.param_spec.prunable, 5)
    for engine in (lean, whole):
        engine.load(made.theta(0.05))
        engine.train(made.shards[0], made.rng_key(), epochs=1)
    found, expected = (
        engine.top_gradients(made.shards[0], made.rng_key(), counts=counts)
        for engine in (lean, whole)
    )
    for name in counts:
        np.testing.assert_array_equal(found[name].indices, expected[name].indices)


def test_sensitivity_of_a_dense_model_is_the_references(both):
    made, native = both
    request = Request("select", "ssfl", 0, (Sensitivity(),), made.start)
    expected, found = (
        answer(engine, request, made.shards[1], made.config.seed).arrays
        for engine in (made.engine, native)
    )
    assert expected.keys() == found.keys() == made.param_spec.prunable.keys()
    for name, scores in expected.items():
        np.testing.assert_allclose(found[name], scores, rtol=1e-3, atol=1e-3 * scores.max())


def test_a_congruent_swap_is_the_references(both):
    made, native = both
    mask = made.theta().mask
    before = made.theta(seed=1)
    arrays = packed_directions(before, made.theta())
    counts = dict.fromkeys(made.param_spec.prunable, 4)
    program = (CongruentSwap(counts, 0.01, 0.5, recent=True),)
    request = Request("train", "fedsgc", 0, program, made.theta(), arrays)
    expected, found = (
        answer(engine, request, made.shards[1], made.config.seed).theta
        for engine in (made.engine, native)
    )
    assert found.mask == expected.mask != mask


def test_drop_scores_are_the_references(both):
    made, native = both
    theta = made.theta()
    request = Request("train", "fedfit", 0, (DropScores(theta.mask.counts, 0.01),), theta)
    expected, found = (
        answer(engine, request, made.shards[1], made.config.seed).arrays
        for engine in (made.engine, native)
    )
    for name, scores in expected.items():
        assert len(scores) == theta.mask.kept(name)
        largest = np.abs(scores).max()
        np.testing.assert_allclose(found[name], scores, rtol=1e-3, atol=1e-3 * largest)
