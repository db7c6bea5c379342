"""Dense federated averaging: weights and batch-norm statistics alike, by the size of a device."""

import numpy as np
import pytest

from fedtiny.federation.rounds import federate
from fedtiny.methods.fedavg import FedAvg

from ..devices.tiny import lab, settings

SIZES = (8, 20, 13)


@pytest.fixture(scope="module")
def round_zero():
    """One round, and what each device would have sent by itself."""
    config = settings(method="fedavg", density=0.05)
    bench = lab(config, sizes=SIZES)
    start = bench.server.theta
    alone = []
    for device in range(3):
        twin = lab(config, sizes=SIZES)
        twin.engine.load(start)
        twin.engine.train(twin.shards[device], twin.rng_key(device), epochs=1)
        alone.append(twin.engine.theta())
    (result,) = federate(bench.server, bench.method, 1)
    return start, alone, bench.server.theta, result


def test_nothing_is_pruned_whatever_the_density(round_zero):
    start, _, theta, result = round_zero
    assert theta.mask.density == 1
    assert theta.mask == start.mask
    assert result.changes == {}
    assert result.outcome.gradients == {}


def test_weights_are_averaged_by_samples(round_zero):
    _, alone, theta, _ = round_zero
    mean = np.average([reply.vector for reply in alone], axis=0, weights=SIZES)
    np.testing.assert_allclose(theta.vector, mean, rtol=1e-6, atol=1e-7)


def test_batch_norm_statistics_are_averaged_by_samples(round_zero):
    start, alone, theta, _ = round_zero
    for name in theta.param_spec.statistics:
        mean = np.average([reply.tensor(name) for reply in alone], axis=0, weights=SIZES)
        np.testing.assert_allclose(theta.tensor(name), mean, rtol=1e-6, atol=1e-7)
        assert not np.allclose(theta.tensor(name), start.tensor(name))
        assert not np.allclose(theta.tensor(name), alone[-1].tensor(name))


def test_the_batch_counter_is_neither_sent_nor_averaged(round_zero):
    _, _, theta, _ = round_zero
    assert not any("num_batches_tracked" in name for name in theta.places)
    assert any("running_var" in name for name in theta.places)


def test_the_density_limit_is_one():
    method = FedAvg(settings(method="fedavg", density=0.01))
    assert [method.density_limit(round) for round in (0, 7)] == [1, 1]


def test_no_device_is_asked_before_the_first_round():
    bench = lab(settings(method="fedavg"))
    list(federate(bench.server, bench.method, 0))
    assert bench.server.coarse_pruned
    assert bench.server.theta.version == bench.start.version
    assert bench.server.traffic.down == 0


def test_it_learns():
    bench = lab(settings(method="fedavg", train={"lr": 0.01, "local_epochs": 3}), sizes=(20, 20))
    losses = [result.outcome.metrics["loss"] for result in federate(bench.server, bench.method, 4)]
    assert losses[-1] < 0.9 * losses[0]
