"""Algorithm 1: statistics over all devices, losses under them, the least biased candidate wins."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedtiny.config import Config, FleetConfig, SelectionConfig, from_dict, resolve
from fedtiny.errors import FedTinyError
from fedtiny.federation.bn_statistics import pooled_variance
from fedtiny.federation.messages import Reply, bn_statistics, losses
from fedtiny.federation.rounds import federate, prepare
from fedtiny.federation.server import Server
from fedtiny.federation.transport import ABSENT
from fedtiny.federation.verbs import BnStatistics
from fedtiny.federation.wire import Known, request_size
from fedtiny.methods.fedtiny import FedTiny
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.densities import budget, uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

from ..devices.tiny import CLASSES, PlainNet, lab, seeded, settings
from ..federation.fakes import FakeTransport

ANATOMY = ParamSpec(
    prunable={"a.weight": (20, 3), "b.weight": (30, 3), "c.weight": (10, 2)},
    dense={"norm.running_mean": (2,), "norm.running_var": (2,), "head.bias": (1,)},
    blocks=(("a.weight",), ("b.weight",), ("c.weight",)),
    norms=("norm",),
    input_layer="first",
    output_layer="head",
)
POOL = 3
DEVELOPMENT = (1, 2, 7)  # samples in each device's development set
# By device and candidate. The mean over samples is lowest for candidate 1; the plain mean and
# device 0 would choose 2, the last device 0.
LOSSES = np.array([[9.0, 6.0, 0.0], [9.0, 1.0, 2.0], [3.0, 3.1, 5.0]], np.float32)
MEANS, VARIANCES = np.random.default_rng(0).uniform(0, 9, (2, 3, POOL, 2)).astype(np.float32)


def pretrained():
    values = np.random.default_rng(1).standard_normal(length(Mask.full(ANATOMY)))
    return Theta(Mask.full(ANATOMY), values.astype(np.float32))


class Fleet:
    """Devices whose statistics and losses are written in the tables above."""

    def __init__(self, losses=LOSSES, missing=()):
        self.losses, self.missing = losses, missing

    def __call__(self, device, request):
        if device in self.missing:
            return ABSENT
        (verb,) = request.program
        samples = DEVELOPMENT[device]
        if verb.name == "losses":
            return Reply(device, samples, arrays={"losses": self.losses[device]})
        kind, second = "running_var", VARIANCES[device]
        if verb.options["second_moment"] == "square":
            kind, second = "running_square", second + MEANS[device] ** 2
        means = {"norm.running_mean": MEANS[device], f"norm.{kind}": second}
        return Reply(device, samples, arrays=means)


def selected(fleet=None, **selection):
    """A server after coarse pruning, and what it asked."""
    settings = {
        "density": 0.3,
        "fleet": {"devices": 3, "fraction": 0.4, "min_replies": 2},
        "selection": {"pool_size": POOL, **selection},
    }
    config = resolve(from_dict(settings))
    server = Server(config, FakeTransport(3, fleet or Fleet()), pretrained())
    prepare(server, FedTiny(config))
    return server, server.transport.asked


def over_devices(table, devices=(0, 1, 2)):
    weights = [DEVELOPMENT[device] for device in devices]
    return np.average(table[list(devices)], axis=0, weights=weights)


# By hand, with a fake fleet


def test_all_devices_are_asked_twice_about_one_pool():
    _, asked = selected(batch_size=64, passes=2)
    assert [devices for devices, _, _ in asked] == [[0, 1, 2]] * 2  # though a round asks two
    first, second = (request for _, request, _ in asked)
    assert first.program == (bn_statistics(64, passes=2, second_moment="var"),)
    assert second.program == (losses(),)
    assert first.action == second.action == "select"
    assert first.theta is second.theta
    assert np.array_equal(first.arrays["pool.counts"], second.arrays["pool.counts"])
    assert first.arrays.keys() == {"pool.counts"}


def test_statistics_are_averaged_by_development_size_over_all_devices():
    _, asked = selected()
    given = asked[1][1].arrays
    np.testing.assert_allclose(given["norm.running_mean"], over_devices(MEANS), rtol=1e-6)
    np.testing.assert_allclose(given["norm.running_var"], over_devices(VARIANCES), rtol=1e-6)
    for device in range(3):  # a public version kept the last one's
        assert not np.allclose(given["norm.running_mean"], MEANS[device])


def test_the_candidate_of_lowest_average_loss_wins():
    server, asked = selected()
    record = server.memory["selection"]
    assert record["chosen"] == over_devices(LOSSES).argmin() == 1
    np.testing.assert_allclose(record["losses"], over_devices(LOSSES), rtol=1e-6)
    counts = asked[0][1].arrays["pool.counts"]
    assert list(server.theta.mask.counts.values()) == counts[1].tolist()
    assert record["layer_counts"] == counts.tolist()


def test_the_winner_is_a_magnitude_cut_of_the_pretrained_model():
    server, dense = selected()[0], pretrained()
    for layer, count in server.theta.mask.counts.items():
        magnitudes = np.abs(dense.tensor(layer).reshape(-1))
        assert set(server.theta.mask.indices(layer)) == set(np.argsort(-magnitudes)[:count])
        kept = dense.tensor(layer).reshape(-1)[server.theta.mask.indices(layer)]
        assert np.array_equal(server.theta.kept(layer), kept)
    assert np.array_equal(server.theta.tensor("head.bias"), dense.tensor("head.bias"))


def test_the_winner_carries_its_aggregated_statistics():
    server, asked = selected()
    given = asked[1][1].arrays
    for name in ANATOMY.statistics:
        assert np.array_equal(server.theta.tensor(name), given[name][1])


def test_vanilla_asks_once_and_keeps_the_pretrained_statistics():
    server, asked = selected(kind="vanilla")
    ((devices, request, _),) = asked
    assert devices == [0, 1, 2]
    assert request.program == (losses(),)
    assert request.arrays.keys() == {"pool.counts"}
    assert server.memory["selection"]["chosen"] == 1
    for name in ANATOMY.statistics:
        assert np.array_equal(server.theta.tensor(name), pretrained().tensor(name))


def test_vanilla_and_adaptive_selection_compare_the_same_pool():
    (adaptive, *_), (vanilla,) = selected()[1], selected(kind="vanilla")[1]
    assert adaptive[1].theta.version == vanilla[1].theta.version
    counts = [asked[1].arrays["pool.counts"] for asked in (adaptive, vanilla)]
    assert np.array_equal(*counts)


def test_without_selection_nobody_is_asked_and_pruning_is_uniform():
    server, asked = selected(kind="none")
    assert asked == []
    assert list(server.theta.mask.counts.values()) == uniform(ANATOMY, 0.3).tolist()
    assert server.memory == {}
    assert FedTiny(server.config).summary(server) == {}


@pytest.mark.parametrize("kind", ["adaptive_bn", "vanilla"])
def test_the_candidates_differ_and_none_exceeds_the_density(kind):
    server, asked = selected(kind=kind, pool_size=20, variance="mean", fleet=Wide(20))
    counts = asked[0][1].arrays["pool.counts"]
    assert counts.shape == (20, 3)
    assert len(np.unique(counts, axis=0)) > 10
    assert (counts.sum(axis=1) <= budget(ANATOMY, 0.3)).all()
    assert (counts >= 1).all()
    assert max(server.memory["selection"]["densities"]) <= 0.3


class Wide:
    """The same figures for any number of candidates."""

    def __init__(self, size):
        self.size = size

    def __call__(self, device, request):
        if request.program[0].name == "losses":
            return Reply(device, 1, arrays={"losses": np.arange(self.size, dtype=np.float32)})
        rows = {
            name: np.ones((self.size, *s), np.float32) for name, s in ANATOMY.statistics.items()
        }
        return Reply(device, 1, arrays=rows)


def test_the_pool_is_fixed_by_the_seed():
    def pool(seed):
        config = resolve(from_dict({"density": 0.3, "seed": seed, "selection": {"pool_size": 9}}))
        return FedTiny(config).candidates(Server(config, FakeTransport(), pretrained())).counts

    assert np.array_equal(pool(0), pool(0))
    assert not np.array_equal(pool(0), pool(1))


def test_the_missing_have_no_say():
    server, asked = selected(Fleet(missing=[2]))
    given = asked[1][1].arrays
    expected = over_devices(MEANS, devices=(0, 1))
    np.testing.assert_allclose(given["norm.running_mean"], expected, rtol=1e-6)
    assert server.memory["selection"]["chosen"] == over_devices(LOSSES, (0, 1)).argmin() == 2


@pytest.mark.parametrize("kind", ["adaptive_bn", "vanilla"])
def test_too_few_answers_end_the_selection(kind):
    with pytest.raises(FedTinyError, match=r"only 1 device answered.*--fleet\.min-replies 2"):
        selected(Fleet(missing=[0, 2]), kind=kind)


THERE = "continue the run when more devices are there"
ANOTHER_SEED = "or with another --seed, which failures follow"
WAYS_OUT = {
    THERE: (FleetConfig(), 0),
    f"{THERE}, or start anew with a lower --fleet.min-replies": (FleetConfig(min_replies=2), 1),
    f"start anew with a lower --fleet.fail-rate, {ANOTHER_SEED}": (FleetConfig(fail_rate=0.5), 0),
    f"start anew with a lower --fleet.straggler-rate or --fleet.min-replies, {ANOTHER_SEED}": (
        FleetConfig(straggler_rate=0.5, min_replies=2),
        1,
    ),
}


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_the_way_out_is_one_that_helps(way_out):
    """Simulated failures come again; real devices come back."""
    fleet, answered = WAYS_OUT[way_out]
    selection = SelectionConfig(pool_size=POOL)
    config = resolve(Config(density=0.3, fleet=replace(fleet, devices=3), selection=selection))
    server = Server(config, FakeTransport(3, Fleet(missing=range(answered, 3))), pretrained())
    with pytest.raises(FedTinyError) as told:
        prepare(server, FedTiny(config))
    assert str(told.value).partition("; ")[2] == way_out


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_loss_that_is_no_number_loses(value):
    table = LOSSES.copy()
    table[0, 1] = value
    server, _ = selected(Fleet(table))
    expected = over_devices(LOSSES)
    expected[1] = np.inf
    assert server.memory["selection"]["chosen"] == expected.argmin() != 1
    assert server.memory["selection"]["losses"][1] == np.inf


def test_no_finite_loss_at_all_is_an_error():
    with pytest.raises(FedTinyError, match="no candidate has a finite loss"):
        selected(Fleet(np.full_like(LOSSES, np.nan)))


def test_the_summary_is_the_selection():
    server, _ = selected()
    assert FedTiny(server.config).summary(server) == {"selection": server.memory["selection"]}
    assert server.memory["selection"]["layers"] == list(ANATOMY.prunable)


# Pooled variance


def test_pooled_variance_is_numpy_s_over_all_the_data():
    """Exact and biased (divided by n, as numpy does) where devices send the exact E[x^2]."""
    draw = np.random.default_rng(3)
    data = [draw.normal(draw.uniform(-3, 3), 1, (n, 2)) for n in (5, 20, 50)]
    weights = [len(part) for part in data]
    arrays = {
        "norm.running_mean": np.average([d.mean(0) for d in data], axis=0, weights=weights),
        "norm.running_square": np.average([(d**2).mean(0) for d in data], axis=0, weights=weights),
    }
    found = pooled_variance({name: values.astype(np.float32) for name, values in arrays.items()})
    pooled = np.concatenate(data)
    np.testing.assert_allclose(found["norm.running_mean"], pooled.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["norm.running_var"], pooled.var(0), rtol=1e-5)
    assert found.keys() == {"norm.running_mean", "norm.running_var"}


def test_rounding_never_makes_a_variance_negative():
    tiny = {"n.running_mean": np.full(1, 3.3, "f4"), "n.running_square": np.full(1, 10.88, "f4")}
    assert pooled_variance(tiny)["n.running_var"].tolist() == [0]


def test_devices_asked_for_pooling_send_squares():
    server, asked = selected(variance="pooled")
    first, second = (request for _, request, _ in asked)
    assert first.program[0].options["second_moment"] == "square"
    mean, square = over_devices(MEANS), over_devices(VARIANCES + MEANS**2)
    np.testing.assert_allclose(second.arrays["norm.running_var"], square - mean**2, rtol=1e-4)
    assert second.arrays.keys() == {"pool.counts", *ANATOMY.statistics}
    chosen = server.theta.tensor("norm.running_var")
    assert np.array_equal(chosen, second.arrays["norm.running_var"][1])


# With real devices


def watched(bench):
    """The requests and outcomes of a bench's transport."""
    seen, plain = [], bench.transport.ask

    def spy(*asked):
        outcome, request = plain(*asked), asked[1]
        seen.append((request, outcome))
        return outcome

    bench.transport.ask = spy
    return seen


def test_the_winner_s_statistics_are_the_mean_of_what_each_device_measured():
    bench = lab()
    prepare(bench.server, bench.method)
    pool = bench.method.candidates(lab().server)
    best = bench.server.memory["selection"]["chosen"]
    weights = [len(shard.development) for shard in bench.shards]
    rows = [bench.engine.bn_statistics(shard, pool, BnStatistics(128)) for shard in bench.shards]
    for name in bench.param_spec.statistics:
        mean = np.average([row[name][best] for row in rows], axis=0, weights=weights)
        np.testing.assert_allclose(bench.server.theta.tensor(name), mean, rtol=1e-5, atol=1e-7)


def test_the_winner_has_the_lowest_loss_when_measured_again():
    bench = lab(settings(selection={"pool_size": 6}))
    seen = watched(bench)
    prepare(bench.server, bench.method)
    pool = bench.method.candidates(lab(bench.config).server)
    statistics = {k: v for k, v in seen[1][0].arrays.items() if k != "pool.counts"}
    table = [bench.engine.losses(shard, pool, statistics) for shard in bench.shards]
    mean = np.average(table, axis=0, weights=[len(s.development) for s in bench.shards])
    assert mean.argmin() == bench.server.memory["selection"]["chosen"]


@pytest.mark.parametrize("wire", ["count", "encode"])
def test_the_second_question_does_not_send_the_pool_again(wire):
    bench = lab(settings(fleet={"devices": 3, "wire": wire}))
    seen = watched(bench)
    prepare(bench.server, bench.method)
    (first, one), (second, two) = seen
    theta = first.theta
    assert one.traffic.down == 3 * request_size(first, Known())
    held = Known(theta.mask.version, theta.version)
    assert two.traffic.down == 3 * request_size(second, held)
    assert one.traffic.down > 3 * 4 * len(theta.vector)
    statistics = sum(array.nbytes for array in second.arrays.values())
    assert two.traffic.down < 3 * (statistics + 400)


def test_devices_with_a_loss_that_is_no_number_do_not_choose():
    bench = lab()
    poisoned = bench.server.theta.tensors()
    poisoned["head.bias"] = np.full_like(poisoned["head.bias"], np.nan)
    bench.server.theta = Theta.from_tensors(poisoned, bench.server.theta.mask)
    with pytest.raises(FedTinyError, match="finite loss"):
        prepare(bench.server, bench.method)


class Wide1d(nn.Module):
    """Batch norm over samples alone, where dividing by n - 1 tells."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Linear(64, 5), nn.BatchNorm1d(5)
        self.hidden, self.head = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x):
        return self.head(torch.relu(self.hidden(torch.relu(self.norm(self.stem(x.flatten(1)))))))


def test_pooled_statistics_are_those_of_all_development_data_together():
    config = settings(density=0.8, selection={"variance": "pooled", "development_ratio": 0.5})
    bench = lab(config, sizes=(4, 6, 8), model=seeded(Wide1d))
    prepare(bench.server, bench.method)
    every = np.concatenate([shard.development for shard in bench.shards])
    pixels = torch.from_numpy(bench.data.train.images[every])
    seen = bench.model.stem(bench.engine.transform.normalise(pixels).flatten(1)).detach().numpy()
    found = bench.server.theta.tensors()
    np.testing.assert_allclose(found["norm.running_mean"], seen.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["norm.running_var"], seen.var(0), rtol=1e-3)  # by n, biased


# Models without batch norm


def test_without_batch_norm_adaptive_selection_is_the_vanilla_one_and_says_so():
    plain, vanilla = (
        lab(settings(selection={"kind": kind}), model=seeded(PlainNet))
        for kind in ("adaptive_bn", "vanilla")
    )
    for bench in (plain, vanilla):
        prepare(bench.server, bench.method)
    assert plain.server.memory["selection"] == vanilla.server.memory["selection"]
    np.testing.assert_array_equal(plain.server.theta.vector, vanilla.server.theta.vector)
    (remark,) = plain.method.remarks(plain.param_spec)
    assert "vanilla selection" in remark
    assert not vanilla.method.remarks(vanilla.param_spec)
    asked = [bench.method.coarse_requests(bench.param_spec) for bench in (plain, vanilla)]
    assert [len(requests) for requests in asked] == [1, 1]


@pytest.mark.parametrize("kind", ["vanilla", "none"])
def test_the_other_selections_do_without(kind):
    bench = lab(settings(selection={"kind": kind}), model=seeded(PlainNet))
    results = list(federate(bench.server, bench.method, 2))
    assert all(result.counted for result in results)
    assert bench.server.theta.mask.density <= bench.config.density


def test_a_density_that_leaves_a_layer_empty_is_refused():
    bench = lab(settings(density=0.001))
    with pytest.raises(FedTinyError, match=r"density 0\.001 leaves 0 weights"):
        prepare(bench.server, bench.method)
