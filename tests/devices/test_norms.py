"""Batch-norm statistics as Algorithm 1 measures them, against a calculation by hand."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny.devices.torch_layers import (
    frozen_statistics,
    measured_moments,
    measured_statistics,
)
from fedtiny.federation.verbs import BnStatistics
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.densities import uniform_noise

from .tiny import TinyNet, lab, seeded, settings

NORMS = ("bn0", "bn1", "bn2")


def batches(sizes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 1, 8, 8, generator=draw) * 3 + 1 for size in sizes]


def moments(network, batch):
    """Mean and unbiased variance of what enters each batch norm, by channel."""
    twin, found = deepcopy(network).train(), {}

    def look(name):
        def hook(_, args):
            found[f"{name}.running_mean"] = args[0].mean(dim=(0, 2, 3)).numpy()
            found[f"{name}.running_var"] = args[0].var(dim=(0, 2, 3), unbiased=True).numpy()

        return hook

    for name in NORMS:
        twin.get_submodule(name).register_forward_pre_hook(look(name))
    for module in twin.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    with torch.no_grad():
        twin(batch)
    return found


def test_one_pass_is_the_mean_over_the_batches():
    network, parts = seeded(TinyNet), batches((5, 5, 4))
    found = measured_statistics(network, parts, passes=1)
    by_hand = [moments(network, part) for part in parts]
    assert found.keys() == by_hand[0].keys()
    for name, values in found.items():
        mean = np.mean([batch[name] for batch in by_hand], axis=0)
        np.testing.assert_allclose(values, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("passes", [2, 5])
def test_more_passes_keep_a_running_mean_of_momentum_a_tenth(passes):
    network, parts = seeded(TinyNet), batches((4, 6))
    found = measured_statistics(network, parts, passes=passes)
    for name, values in found.items():
        running = np.ones_like(values) if name.endswith("var") else np.zeros_like(values)
        for part in parts * passes:
            running = 0.9 * running + 0.1 * moments(network, part)[name]
        np.testing.assert_allclose(values, running, rtol=1e-5, atol=1e-6)


def test_moments_are_over_all_samples_however_they_are_batched():
    network, parts = seeded(TinyNet), batches((5, 2, 4))
    found = measured_moments(network, parts)
    seen = network.stem(torch.cat(parts)).detach().numpy().astype(np.float64)
    mean, square = (values.mean(axis=(0, 2, 3)) for values in (seen, seen**2))
    np.testing.assert_allclose(found["bn0.running_mean"], mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["bn0.running_square"], square, rtol=1e-5)
    assert found.keys() == {f"{n}.running_{kind}" for n in NORMS for kind in ("mean", "square")}
    assert not any(module._forward_pre_hooks for module in network.modules())


def test_what_was_measured_before_does_not_count():
    network, parts = seeded(TinyNet), batches((4, 4))
    first = measured_statistics(network, parts, passes=1)
    measured_statistics(network, batches((7,), seed=9), passes=1)
    again = measured_statistics(network, parts, passes=1)
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_dropout_is_off_and_measuring_repeats():
    network, parts = seeded(TinyNet, 0.9), batches((6,))
    network.conv2 = nn.Sequential(nn.Dropout(0.9), network.conv2)
    one, two = (measured_statistics(network.train(), parts, passes=1) for _ in range(2))
    by_hand = moments(network, parts[0])
    for name in one:
        assert np.array_equal(one[name], two[name])
        np.testing.assert_allclose(one[name], by_hand[name], rtol=1e-5, atol=1e-6)


def test_weights_stay_and_the_model_s_own_momentum_comes_back():
    network = seeded(TinyNet)
    network.bn1.momentum, network.bn2.momentum = 0.37, None
    before = {name: p.clone() for name, p in network.named_parameters()}
    measured_statistics(network, batches((4, 4)), passes=1)
    assert [network.get_submodule(n).momentum for n in NORMS] == [0.1, 0.37, None]
    assert all(torch.equal(before[name], p) for name, p in network.named_parameters())
    assert all(p.grad is None for p in network.parameters())


def test_the_momentum_comes_back_when_the_pass_fails():
    network = seeded(TinyNet)
    with pytest.raises(RuntimeError):
        measured_statistics(network, [torch.zeros(2, 3, 8, 8)], passes=1)
    assert network.bn0.momentum == 0.1


def test_the_figures_do_not_change_with_the_model():
    network = seeded(TinyNet)
    found = measured_statistics(network, batches((4,)), passes=1)
    before = found["bn0.running_mean"].copy()
    measured_statistics(network, batches((4,), seed=5), passes=1)
    assert np.array_equal(found["bn0.running_mean"], before)


def test_frozen_statistics_stay_while_the_batch_s_own_are_used():
    network, (batch,) = seeded(TinyNet).train(), batches((5,))
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    plain = deepcopy(network)(batch)
    with frozen_statistics(network):
        assert torch.equal(network(batch), plain)
    assert all(torch.equal(before[name], buffer) for name, buffer in network.named_buffers())
    network(batch)
    assert not torch.equal(network.bn0.running_mean, before["bn0.running_mean"])


# A device and its candidates


def pool_of(bench, size=3):
    draw = np.random.default_rng(4)
    counts = uniform_noise(bench.param_spec, 0.3, size, draw)
    return CandidatePool.cut(bench.server.theta, counts)


def test_each_candidate_is_measured_as_if_alone():
    bench = lab()
    pool, shard = pool_of(bench), bench.shards[2]
    rows = bench.engine.bn_statistics(shard, pool, BnStatistics(4))
    assert {name: values.shape for name, values in rows.items()} == {
        name: (3, *shape) for name, shape in bench.param_spec.statistics.items()
    }
    for c in range(len(pool)):
        other = lab()
        alone = CandidatePool(pool.theta, pool.counts[c : c + 1])
        row = other.engine.bn_statistics(shard, alone, BnStatistics(4))
        assert all(np.array_equal(rows[name][c], row[name][0]) for name in rows)


def test_a_device_measures_its_development_set_as_it_is_at_test_time():
    bench = lab(settings(selection={"development_ratio": 0.6}))
    pool, shard = pool_of(bench, size=1), bench.shards[2]
    rows = bench.engine.bn_statistics(shard, pool, BnStatistics(128))
    bench.engine.load(pool[0])
    pixels = torch.from_numpy(shard.data.images[shard.development])
    by_hand = moments(bench.model, bench.engine.transform.normalise(pixels))
    assert len(shard.development) == 13
    for name, values in by_hand.items():
        np.testing.assert_allclose(rows[name][0], values, rtol=1e-5, atol=1e-6)


def test_a_batch_is_never_larger_than_asked():
    bench, seen = lab(settings(selection={"development_ratio": 1.0})), []
    bench.model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    bench.engine.bn_statistics(bench.shards[2], pool_of(bench, 1), BnStatistics(8))
    assert seen == [7, 7, 7]  # 21 samples


@pytest.mark.parametrize(
    ("samples", "batch_size"), [(12, 5), (21, 8), (9, 4), (12, 128), (9, 2), (21, 4)]
)
def test_every_development_sample_is_measured_once(samples, batch_size):
    bench, seen = lab(settings(selection={"development_ratio": 1.0}), sizes=(samples, 9)), []
    bench.model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    bench.engine.bn_statistics(bench.shards[0], pool_of(bench, 1), BnStatistics(batch_size))
    assert sum(seen) == samples


@pytest.mark.parametrize(("samples", "batch_size"), [(9, 2), (3, 2), (13, 4), (10, 3)])
def test_a_batch_of_one_is_never_measured(samples, batch_size):
    bench, seen = lab(settings(selection={"development_ratio": 1.0}), sizes=(samples, 9)), []
    bench.model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    bench.engine.bn_statistics(bench.shards[0], pool_of(bench, 1), BnStatistics(batch_size))
    assert min(seen) > 1


def test_losses_are_those_of_each_candidate_under_the_statistics_given():
    bench = lab()
    pool, shard = pool_of(bench), bench.shards[1]
    draw = np.random.default_rng(0)
    statistics = {
        name: draw.uniform(0.1, 0.5, (3, *shape)).astype(np.float32)
        for name, shape in bench.param_spec.statistics.items()
    }
    found = bench.engine.losses(shard, pool, statistics)
    pixels = torch.from_numpy(shard.data.images[shard.development])
    labels = torch.from_numpy(shard.data.labels[shard.development])
    for c, candidate in enumerate(pool):
        bench.engine.load(candidate.with_dense({n: rows[c] for n, rows in statistics.items()}))
        logits = bench.model.eval()(bench.engine.transform.normalise(pixels))
        loss = nn.functional.cross_entropy(logits, labels)
        assert found[c] == pytest.approx(loss.item(), rel=1e-5)
    assert found.dtype == np.float32
    assert len(set(found.tolist())) == 3


def test_losses_without_statistics_use_those_that_the_pool_carries():
    bench = lab()
    carried = {
        name: np.full(shape, 2.0, np.float32) for name, shape in bench.param_spec.statistics.items()
    }
    bench.server.theta = bench.server.theta.with_dense(carried)
    pool = pool_of(bench)
    rows = {name: np.stack([values] * 3) for name, values in carried.items()}
    plain = bench.engine.losses(bench.shards[0], pool, {})
    assert np.array_equal(plain, bench.engine.losses(bench.shards[0], pool, rows))


def test_measuring_one_pool_does_not_answer_for_another():
    bench = lab()
    one, shard = pool_of(bench), bench.shards[0]
    other = CandidatePool(one.theta, one.counts[::-1].copy())
    first = bench.engine.losses(shard, one, {})
    second = bench.engine.losses(shard, other, {})
    assert np.array_equal(first, second[::-1])
    assert not np.array_equal(first, second)
