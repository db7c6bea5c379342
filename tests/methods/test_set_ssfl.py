"""SET and SSFL: random growth on the server, and sensitivity measured on the devices."""

import numpy as np
import pytest
import torch

from fedtiny import methods
from fedtiny.cost import Workload, flops, memory, traffic
from fedtiny.devices.batches import gradient_batch
from fedtiny.devices.node import answer
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply, Request, sensitivity, train
from fedtiny.federation.rounds import play_round, prepare
from fedtiny.federation.server import Server
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from ..cost.tiny import workload
from ..devices.tiny import Smooth, TinyNet, lab, seeded, settings
from ..federation.fakes import FakeTransport

SPEC = ParamSpec({"a": (10,), "b": (6,)}, {"bias": (1,)}, (("a",), ("b",)), (), "first", "last")


def grown_and_dropped(seed):
    """One adjustment of a layer that keeps four of ten weights, the first smallest."""
    mask = Mask(SPEC, {"a": [0, 1, 2, 3], "b": [0, 1]})
    theta = Theta(mask, np.array([0.1, -2, 3, 4, 1, 1, 0], np.float32))
    config = settings(method="set", density=0.4, seed=seed, pruning={"delta_r": 2, "r_stop": 4})
    server = Server(config, FakeTransport(), theta, coarse_pruned=True)
    result = play_round(server, methods.create(config))
    return result.changes["a"], server


def test_set_drops_the_smallest_and_grows_at_zero():
    change, server = grown_and_dropped(seed=0)
    assert change.dropped.tolist() == [0]
    (grown,) = change.grown.tolist()
    assert grown >= 4
    assert server.theta.tensor("a")[grown] == 0
    assert server.theta.mask.kept("a") == 4


def test_set_grows_any_pruned_weight_alike():
    """Six pruned weights, 240 times: 40 each, give or take four standard deviations."""
    times = np.bincount([int(grown_and_dropped(seed)[0].grown[0]) for seed in range(240)])
    assert len(times) == 10
    assert abs(times[4:] - 40).max() < 4 * np.sqrt(240 * 5 / 36)


def test_set_asks_devices_for_nothing_but_training():
    config = settings(method="set", pruning={"delta_r": 1, "r_stop": 8})
    method = methods.create(config)
    bench = lab(config)
    prepare(bench.server, method)
    assert method.train_locally(bench.server) + method.score(bench.server) == (train(1),)
    assert flops.of_round(workload("set"), 0) == flops.of_round(workload("fl_pqsu"), 0)
    assert memory.device(workload("set")) == memory.device(workload("fl_pqsu"))


def test_ssfl_averages_by_samples_and_has_one_threshold():
    """Two devices of 1 and 3 samples; of sixteen weights the six of highest mean stay."""
    scores = [
        {"a": np.arange(10), "b": np.array([0, 0, 0, 0, 0, 40])},
        {"a": np.full(10, 4), "b": np.array([1, 0, 0, 0, 12, 0])},
    ]

    def devices(device, request):
        assert request.theta.mask.density == 1
        own = {name: values.astype(np.float32) for name, values in scores[device].items()}
        return Reply(device, (1, 3)[device], arrays=own)

    config = settings(method="ssfl", density=0.4, fleet={"devices": 2})
    theta = Theta(Mask.full(SPEC), np.arange(1, 18, dtype=np.float32))
    server = Server(config, FakeTransport(2, devices), theta)
    prepare(server, methods.create(config))
    assert [request.program for request in server.transport.requests] == [(sensitivity(),)]
    # the means of a are 3, 3.25, ..., 5.25, those of b 0.75, 0, 0, 0, 9 and 10
    assert server.theta.mask.indices("a").tolist() == [6, 7, 8, 9]
    assert server.theta.mask.indices("b").tolist() == [4, 5]
    assert server.theta.kept("b").tolist() == [15, 16]


def test_a_device_measures_gradient_times_weight_on_one_batch():
    bench = lab(settings(method="ssfl"), model=seeded(Smooth), augment=False)
    request = Request("select", "ssfl", 0, (sensitivity(),), bench.start)
    reply = answer(bench.engine, request, bench.shards[0], bench.config.seed)
    assert reply.theta is None
    assert reply.samples == len(bench.shards[0])
    weights = dict(bench.model.named_parameters())
    found = gradients_by_hand(bench, bench.shards[0])
    for layer in bench.param_spec.prunable:
        expected = np.abs(found[layer] * weights[layer].detach().numpy())
        np.testing.assert_allclose(reply.arrays[layer], expected, rtol=1e-5, atol=1e-8)


def gradients_by_hand(bench, shard):
    (samples, _), _ = gradient_batch(shard, bench.rng_key(), bench.engine.transform, most=4)
    inputs, labels = bench.engine.inputs(bench.data.train, samples)
    loss = torch.nn.functional.cross_entropy(bench.model.train()(inputs), labels)
    weights = bench.engine.prunable()
    return dict(
        zip(
            weights,
            (g.numpy() for g in torch.autograd.grad(loss, [*weights.values()])),
            strict=True,
        )
    )


def test_ssfl_says_what_to_do_when_too_few_devices_answer():
    config = settings(method="ssfl", fleet={"devices": 3, "min_replies": 3, "fail_rate": 0.5})
    bench = lab(config)
    with pytest.raises(FedTinyError, match=r"fewer than --fleet\.min-replies 3; start anew with"):
        prepare(bench.server, bench.method)


@pytest.mark.parametrize("wire", ["count", "encode"])
def test_the_bytes_of_scoring_are_those_predicted(wire):
    config = settings(method="ssfl", fleet={"devices": 1, "wire": wire})
    bench = lab(config, sizes=(16,))
    prepare(bench.server, bench.method)
    work = Workload.of(config, model=seeded(TinyNet), shape=bench.data.shape, classes=3, samples=16)
    assert bench.server.traffic == traffic.selection(work)


def test_ssfl_s_devices_once_hold_a_dense_model_and_its_scores():
    """Of the tiny network 338 + 5 + ... parameters, twice, and 328 prunable scores."""
    work = workload("ssfl", density=0.01)
    parameters = work.network.profile.parameters
    items = memory.device(work)
    assert items["weights"] == items["gradients"] == 4 * parameters
    assert items["sensitivity"] == 4 * 328
    assert items["optimizer_state"] == 0
    assert memory.total(work, "paper") == 8 * parameters
    assert flops.selection(work) == 3 * 8 * 2 * (288 + 128 + 320 + 15)
