"""Local training is a plain PyTorch loop with masked gradients, and nothing leaks."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedtiny.config import TrainConfig
from fedtiny.data import ImageSet
from fedtiny.data.transforms import Preparation
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import RngKey, optimizer
from fedtiny.devices.node import answer
from fedtiny.devices.torch_engine import TorchEngine
from fedtiny.errors import DataError, FedTinyError
from fedtiny.federation.messages import Request, train
from fedtiny.models import analyze
from fedtiny.randomness import BEFORE_ROUNDS, SERVER
from fedtiny.sparse.mask import Mask

from .tiny import TinyNet, lab, seeded, settings

OPTIMIZERS = {
    "adam": partial(torch.optim.Adam, lr=1e-3, weight_decay=1e-4),
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4),
}


def trained(bench, theta, device=0, round=0, epochs=2):
    bench.engine.load(theta)
    bench.engine.train(bench.shards[device], bench.rng_key(device, round), epochs=epochs)
    return bench.engine.theta()


def plain_training(bench, theta, device, optimizer, epochs, fused):
    """The loop one would write by hand, on a copy of the network."""
    network, shard, transform = deepcopy(bench.model), bench.shards[device], bench.engine.transform
    tensors = {name: torch.from_numpy(array.copy()) for name, array in theta.tensors().items()}
    network.load_state_dict(tensors, strict=False)
    masks = {layer: torch.from_numpy(theta.mask.array(layer)) for layer in theta.mask}
    images, labels = (torch.from_numpy(a) for a in (shard.data.images, shard.data.labels))
    rng_key, size = bench.rng_key(device), bench.config.train.batch_size
    order, noise = rng_key.generator("permutation"), rng_key.generator("augmentation")
    optimizer, losses = OPTIMIZERS[optimizer](network.parameters(), fused=fused), []
    network.train()
    for _ in range(epochs):
        shuffled, draws = order.permutation(shard.indices), transform.draws(noise, len(shard))
        for batch in range(len(shard) // size):
            part = slice(batch * size, (batch + 1) * size)
            inputs = transform.augment(images[shuffled[part]], draws[part])
            optimizer.zero_grad()
            loss = F.cross_entropy(network(inputs), labels[shuffled[part]])
            loss.backward()
            for layer, mask in masks.items():
                network.get_parameter(layer).grad *= mask
            optimizer.step()
            losses.append(loss.item())
    return network.state_dict(), np.mean(losses)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_a_plain_loop_with_masked_gradients_to_the_last_bit(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}))
    theta = bench.theta()
    expected, loss = plain_training(bench, theta, 2, optimizer, epochs=3, fused=True)
    order = Request("train", "fedtiny", 0, (train(3),), theta)
    metrics = answer(bench.engine, order, bench.shards[2], seed=0).metrics
    state = bench.model.state_dict()
    for name in theta.places:
        assert torch.equal(state[name], expected[name]), name
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_fused_optimizer_is_the_plain_one_but_for_rounding(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}))
    theta = bench.theta()
    expected, _ = plain_training(bench, theta, 2, optimizer, epochs=1, fused=False)
    tensors = trained(bench, theta, device=2, epochs=1).tensors()
    for name, values in tensors.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_pruned_weight_stays_zero_under_momentum_and_decay(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}))
    theta = bench.theta()
    moved = trained(bench, theta, epochs=4)
    for layer in theta.mask:
        weights = bench.model.state_dict()[layer].numpy()
        assert not weights[~theta.mask.array(layer)].any()
        assert (weights[theta.mask.array(layer)] != theta.kept(layer)).any()
    assert moved.mask == theta.mask


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_weight_dropped_between_rounds_stays_zero_in_the_next(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}))
    first = trained(bench, bench.theta(0.5, seed=0))
    second = first.remasked(bench.theta(0.3, seed=1).mask)
    trained(bench, second, round=1)
    for layer in second.mask:
        weights = bench.model.state_dict()[layer].numpy()
        assert not weights[~second.mask.array(layer)].any()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_decay_is_the_optimizer_s_own_unless_one_is_given(name):
    own, none, given = (
        optimizer(TrainConfig(optimizer=name, weight_decay=decay)) for decay in (None, 0.0, 0.25)
    )
    assert own.weight_decay == OPTIMIZERS[name].keywords["weight_decay"]
    assert (none.weight_decay, given.weight_decay) == (0.0, 0.25)
    assert replace(given, weight_decay=own.weight_decay) == own


def test_what_is_loaded_comes_back():
    bench = lab()
    for theta in (bench.server.theta, bench.theta(0.1), bench.theta(0.6), bench.server.theta):
        bench.engine.load(theta)
        assert bench.engine.theta().version == theta.version
    empty = bench.server.theta.remasked(
        Mask(bench.param_spec, {n: [] for n in bench.param_spec.sizes})
    )
    bench.engine.load(empty)
    assert not any(bench.model.state_dict()[layer].any() for layer in empty.mask)


def test_a_theta_taken_from_the_engine_does_not_change_with_it():
    bench = lab()
    theta = bench.theta()
    bench.engine.load(theta)
    taken = bench.engine.theta()
    before = taken.vector.copy()
    bench.engine.train(bench.shards[0], bench.rng_key(), epochs=1)
    assert np.array_equal(taken.vector, before)
    assert np.array_equal(theta.vector, before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizer_starts_afresh_every_time(optimizer):
    config = settings(train={"optimizer": optimizer})
    one, other = lab(config), lab(config)
    halfway = trained(one, one.theta(), round=0)
    assert trained(one, halfway, round=1).version == trained(other, halfway, round=1).version


def test_a_device_s_training_does_not_depend_on_who_trained_before():
    config = settings(train={"local_epochs": 2})
    before, after = (lab(config, model=seeded(TinyNet, 0.5)) for _ in range(2))
    theta = before.theta()
    first = [trained(before, theta, device) for device in (0, 1)]
    torch.manual_seed(99)  # nor on the process's own generator
    second = [trained(after, theta, device) for device in (1, 0)]
    assert [t.version for t in first] == [t.version for t in second][::-1]
    assert first[0].version != first[1].version


def test_a_cumulative_batch_norm_does_not_depend_on_who_trained_before_either():
    def bench():
        network = seeded(TinyNet)
        network.bn1.momentum = None
        return lab(model=network)

    fresh, used = bench(), bench()
    theta = fresh.theta()
    trained(used, theta, device=0)
    assert trained(fresh, theta, device=1).version == trained(used, theta, device=1).version


def test_training_leaves_the_process_s_generator_alone():
    bench = lab(model=seeded(TinyNet, 0.5))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trained(bench, bench.theta())
    assert torch.equal(torch.get_rng_state(), before)


def test_every_round_and_every_epoch_draws_anew():
    bench, seen = lab(augment=False), []
    bench.model.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    theta = bench.theta()
    for round in (0, 1):
        trained(bench, theta, round=round, epochs=2)
    batches = [batch.numpy().tobytes() for batch in seen]
    assert len(set(batches)) == len(batches) == 2 * 2 * 3


def test_dropout_is_drawn_anew_for_every_device_and_round():
    bench, seen = lab(model=seeded(TinyNet, 0.5), sizes=(8, 8)), []
    bench.model.dropout.register_forward_pre_hook(lambda _, args: torch.ones_like(args[0]))
    bench.model.dropout.register_forward_hook(
        lambda _, args, out: seen.append(out.numpy().tobytes())
    )
    theta = bench.theta()
    for device, round in ((0, 0), (1, 0), (0, 1), (0, 0)):
        trained(bench, theta, device, round, epochs=1)
    first, other_device, other_round, again = (seen[i : i + 2] for i in range(0, 8, 2))
    assert first == again
    assert len({*first, *other_device, *other_round}) == 6


class Ledger(nn.Module):
    """Writes down which samples it sees; the first pixel of a sample is its number."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.Linear(3, 2)
        )
        self.seen = []

    def forward(self, x):
        if self.training:
            self.seen.append([int(n) for n in x[:, 0, 0, 0]])
        return self.layers(x)


def ledger(samples, batch_size, start=0):
    """A device whose samples are numbered from a start, and the network that counts them."""
    numbers = np.zeros((start + samples, 1, 2, 2), np.float32)
    numbers[:, 0, 0, 0] = np.arange(start + samples)
    data = ImageSet(numbers, np.arange(start + samples) % 2, ("even", "odd"))
    own = np.arange(start, start + samples)
    network = Ledger()
    preparation = Preparation(mean=(0.0,), std=(1.0,))
    config = settings(train={"batch_size": batch_size})
    engine = TorchEngine(network, DeviceSpec(config, analyze(network, data.shape), preparation))
    return engine, DeviceData(0, data, own, own[:2]), network


@pytest.mark.parametrize(
    ("samples", "batches"),
    [(12, [4, 4, 4]), (11, [4, 4]), (9, [4, 4]), (5, [4]), (4, [4]), (3, [3]), (2, [2])],
)
def test_the_ragged_last_batch_is_dropped_but_a_small_device_has_one(samples, batches):
    engine, shard, network = ledger(samples, batch_size=4, start=100)
    engine.train(shard, RngKey(0, 0, 0), epochs=2)
    assert [len(batch) for batch in network.seen] == 2 * batches  # a batch of one never trains
    epochs = network.seen[: len(batches)], network.seen[len(batches) :]
    first, second = (list(chain(*epoch)) for epoch in epochs)
    for epoch in (first, second):
        assert len(set(epoch)) == len(epoch)  # no sample twice
        assert set(epoch) <= set(shard.indices.tolist())  # nor another device's
    assert samples < 4 or first != second


def test_a_device_of_one_sample_cannot_train():
    engine, shard, _ = ledger(1, batch_size=4)
    with pytest.raises(DataError, match="at least two samples"):
        engine.train(shard, RngKey(0, 0, 0), epochs=1)


def test_no_epochs_change_nothing():
    bench = lab()
    theta = bench.theta()
    assert trained(bench, theta, epochs=0).version == theta.version


def diverge(rng_key):
    bench = lab(settings(train={"optimizer": "sgd", "lr": 1e30}))
    bench.engine.train(bench.shards[1], rng_key, epochs=3)


def test_divergence_names_the_device_and_the_round():
    with pytest.raises(FedTinyError, match=r"diverged on device 1 in round 8.*lower --train\.lr"):
        diverge(RngKey(0, round=7, device=1))


def test_divergence_before_the_rounds_does_not_name_a_device_that_is_none():
    with pytest.raises(FedTinyError, match="diverged") as told:
        diverge(RngKey(0, BEFORE_ROUNDS, SERVER))
    assert str(SERVER) not in str(told.value)


def test_evaluation_is_the_mean_over_all_of_a_shard():
    bench = lab()
    theta, shard = bench.theta(), bench.shards[2]
    bench.engine.load(theta)
    metrics = bench.engine.evaluate(shard)
    pixels = torch.from_numpy(shard.data.images[shard.indices])
    logits = deepcopy(bench.model).eval()(bench.engine.transform.normalise(pixels))
    labels = torch.from_numpy(shard.data.labels[shard.indices])
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert metrics["accuracy"] == int((logits.argmax(1) == labels).sum()) / len(shard)
    assert bench.engine.theta().version == theta.version


def test_training_learns():
    bench = lab(settings(train={"lr": 0.01}), sizes=(60,))
    bench.engine.load(bench.server.theta)
    before = bench.engine.evaluate(bench.shards[0])["loss"]
    bench.engine.train(bench.shards[0], bench.rng_key(), epochs=6)
    assert bench.engine.evaluate(bench.shards[0])["loss"] < 0.7 * before
