"""Runs with native devices: when they are chosen, and that they come to what torch comes to."""

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import fedtiny
from fedtiny import config as configs
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.export.numpy_model import load as load_numpy
from fedtiny.export.source import pack_run
from fedtiny.runs.assembly import assemble
from fedtiny.runs.reporter import Silent

from ..devices.gpu.twins import (
    Twins,
    assert_near_until_then,
    assert_the_same_candidate,
    assert_the_same_first_adjustment,
    play,
    quick,
    shared,
)
from .test_sensors import sensor_data


def backend(**settings):
    assembly = assemble(quick(**({"device_backend": "auto"} | settings)))
    assembly.server.transport.close()
    assert assembly.asked.device_backend == assembly.config.device_backend
    return assembly.config.device_backend


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ({}, "native"),
        ({"model": "vgg11_small"}, "native"),
        ({"method": "feddst"}, "native"),
        ({"density": 0.5}, "torch"),
        ({"method": "fedavg"}, "torch"),
        ({"method": "lotteryfl"}, "torch"),
        ({"simulator": "gpu"}, "torch"),
        ({"density": 0.5, "device_backend": "native"}, "native"),
        ({"device_backend": "torch"}, "torch"),
    ],
)
def test_native_devices_are_chosen_where_they_are_faster(settings, chosen):
    assert backend(**settings) == chosen


def test_native_devices_cannot_be_simulated_on_a_gpu():
    with pytest.raises(ConfigError, match="--device-backend torch"):
        backend(simulator="gpu", device_backend="native")


class Odd(nn.Module):
    """Has a layer that the native library does not know."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3)
        self.share, self.head = nn.Softmax(1), nn.Linear(4, 10)

    def forward(self, x):
        x = self.share(self.second(torch.relu(self.first(x))))
        return self.head(x.mean(dim=(2, 3)))


def test_a_network_that_cannot_be_translated_is_played_by_torch_or_refused_by_name():
    config = quick(method="fl_pqsu", density=0.2, device_backend="auto")
    assembly = assemble(config, model=Odd())
    assembly.server.transport.close()
    assert assembly.config.device_backend == "torch"
    with pytest.raises(FedTinyError, match=r"softmax \(share\); use --device-backend torch$"):
        assemble(replace(config, device_backend="native"), model=Odd())


class Tutorial(nn.Module):
    """As PyTorch's first tutorial and its MNIST example had it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 2)
        self.fc1, self.fc2 = nn.Linear(24, 12), nn.Linear(12, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        x = F.relu(self.fc1(x.view(-1, self.num_flat_features(x))))
        return F.log_softmax(self.fc2(x), dim=1)

    def num_flat_features(self, x):
        num_features = 1
        for s in x.size()[1:]:
            num_features *= s
        return num_features


def test_a_network_that_ends_in_a_log_softmax_is_trained_alike_and_exports_logits(tmp_path, capsys):
    torch.manual_seed(0)
    network, found = Tutorial(), []
    for backend in ("native", "torch"):
        config = quick(method="fl_pqsu", density=0.5, rounds=1, device_backend=backend)
        found.append(fedtiny.run(config, out=tmp_path / backend, model=network))
        assert "the log-softmax at the end of the network is left out" in capsys.readouterr().out
    native, dense = found
    assert native.loss == pytest.approx(dense.loss, rel=1e-3)
    images = np.random.default_rng(0).standard_normal((5, 1, 8, 8)).astype(np.float32)
    logits = load_numpy(pack_run(native.path, model=network)).logits(images)
    with torch.no_grad():
        given = native.network(torch.from_numpy(images)).numpy()
    shares = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    np.testing.assert_allclose(shares, given, atol=1e-5)


class Plain(nn.Module):
    """A network that native devices can play."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.Conv2d(4, 4, 3),
        )
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        return self.head(x.mean(dim=(2, 3)))


def frozen():
    network = Plain()
    network.first.weight.requires_grad = False
    network.second.weight.requires_grad = False
    return network


def played_by(network, backend):
    assembly = assemble(quick(density=0.2, device_backend=backend), model=network)
    assembly.server.transport.close()
    return assembly.config.device_backend


def test_a_network_with_frozen_weights_is_played_by_torch_or_refused_by_name():
    assert played_by(Plain(), "auto") == "native"
    assert played_by(frozen(), "auto") == "torch"
    with pytest.raises(ConfigError, match=r"native: 'first\.weight' is frozen .*backend torch$"):
        played_by(frozen(), "native")


class SpareLayer(Plain):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(3, 3)


class SpareParameter(Plain):
    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(3))


class SpareStep(Plain):
    def forward(self, x):
        torch.relu(x)
        return super().forward(x)


UNUSED = {
    SpareLayer: r"never uses 'spare\.weight'",
    SpareParameter: "never uses 'spare'",
    SpareStep: "read by no other node",
}


@pytest.mark.parametrize("kind", UNUSED)
def test_a_network_with_something_it_never_uses_is_played_by_torch_or_refused_by_name(kind):
    assert played_by(kind(), "auto") == "torch"
    with pytest.raises(ConfigError, match=rf"{UNUSED[kind]}.*; use --device-backend torch$"):
        played_by(kind(), "native")


@pytest.mark.parametrize("simulator", ["reference", "gpu"])
def test_frozen_weights_stay_what_they_were(simulator, tmp_path):
    network = frozen()
    config = quick(density=0.2, rounds=1, device_backend="auto", simulator=simulator)
    played = play(config, tmp_path / "run", model=network)
    trained, masks = played.result.network, [theta.mask for theta in played.thetas]
    assert np.array_equal(masks[0].indices("second.weight"), masks[-1].indices("second.weight"))
    assert torch.equal(trained.first.weight, network.first.weight)
    kept = trained.second.weight != 0
    assert kept.any()
    assert torch.equal(trained.second.weight[kept], network.second.weight[kept])
    assert not torch.equal(trained.head.weight, network.head.weight)


def both(config, folder, **given):
    sides = (replace(config, device_backend=name) for name in ("torch", "native"))
    return Twins(*(play(side, folder / side.device_backend, **given) for side in sides))


@pytest.mark.parametrize("method", ["fedtiny", "prunefl"])
def test_native_devices_do_what_torch_devices_do(method, tmp_path):
    twins = both(quick(method=method, rounds=1, train={"lr": 1e-4}), tmp_path)
    if method == "fedtiny":
        assert_the_same_candidate(twins)
    assert_the_same_first_adjustment(twins)
    assert_near_until_then(twins)


RECIPE = {
    "train": {
        **{"lr": 1e-4, "lr_schedule": "cosine", "lr_warmup": 1},
        **{"weight_decay": 0.1, "decay_norms": False, "proximal_mu": 100.0},
    },
    "server": {"optimizer": "fedadam", "average": "ema", "average_start": 0},
}
OTHERWISE = (
    {"train": {"proximal_mu": 0.0}},
    {"train": {"decay_norms": True}},
    {"train": {"lr_schedule": "constant"}},
    {"server": {"optimizer": "fedavg"}},
    {"server": {"average": "none"}},
)


def off(one, other):
    """How far most values are apart, after any round and in the model that is kept."""
    ends = [
        torch.nn.utils.parameters_to_vector(p.result.network.parameters()) for p in (one, other)
    ]
    pairs = zip(one.thetas, other.thetas, strict=True)
    by_round = [np.concatenate([np.abs(a - b) for a, b in shared(*pair)]) for pair in pairs]
    found = [*by_round, (ends[0] - ends[1]).abs().detach().numpy()]
    return max(np.quantile(values, 0.99) for values in found)


def recipe(method="fedtiny", **changes):
    parts = {name: own | changes.get(name, {}) for name, own in RECIPE.items()}
    return quick(method=method, rounds=3, **parts)


def test_gradients_of_whole_layers_follow_the_recipe_too(tmp_path):
    twins = both(recipe("prunefl"), tmp_path)
    assert_the_same_first_adjustment(twins)
    assert_near_until_then(twins)


def test_native_devices_follow_the_recipe_as_torch_devices_do(tmp_path):
    twins = both(recipe(), tmp_path)
    assert_the_same_candidate(twins)
    assert_the_same_first_adjustment(twins)
    assert off(*twins.both) < 2e-5
    for number, changes in enumerate(OTHERWISE):
        other = replace(recipe(**changes), device_backend="native")
        assert off(twins.reference, play(other, tmp_path / str(number))) > 5e-5, changes


NAMED = {
    # torch rounds in 53 layers, and batch norm would magnify that by 316 in filters that are empty
    "mobilenetv2": {"train": {"lr": 1e-5}, "pruning": {"gradient_epsilon": 0.01}},
    "mobilenetv3_small": {},
    "ds_cnn": {"width": 32, "density": 0.2},  # or it has few weights to swap
    "resnet18_gn": {},
    "squeezenet": {},
    "lenet5": {},
}


LONG = {"mobilenetv2", "mobilenetv3_small"}
NAMES = [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in NAMED]


@pytest.mark.parametrize("model", NAMES)
def test_networks_of_devices_come_to_the_same_on_both_backends(model, tmp_path):
    how = {"rounds": 1, "train": {"lr": 1e-4}, "fleet": {"devices": 2}, **NAMED[model]}
    twins = both(quick(model=model, **how), tmp_path)
    assert_the_same_candidate(twins)
    assert_the_same_first_adjustment(twins)
    assert_near_until_then(twins)


def test_a_network_of_sensors_comes_to_the_same_on_both_backends(tmp_path):
    sensor = {"model": "cnn1d", "width": 16, "data": {"limit_train": None, "limit_test": None}}
    config = quick(rounds=1, train={"lr": 1e-4}, fleet={"devices": 2}, **sensor)
    twins = both(config, tmp_path, data=sensor_data())
    assert_the_same_candidate(twins)
    assert_the_same_first_adjustment(twins)
    assert_near_until_then(twins)


@pytest.mark.slow
def test_over_three_seeds_native_devices_learn_as_much(tmp_path):
    config = quick(
        rounds=8,
        data={"limit_train": 900, "limit_test": 500},
        train={"local_epochs": 2},
        pruning={"r_stop": 4},
    )
    found = [both(replace(config, seed=seed), tmp_path / str(seed)) for seed in range(3)]
    means = [
        np.mean([played.result.accuracy for played in side])
        for side in zip(*(twins.both for twins in found), strict=True)
    ]
    assert means[0] > 0.5, "or this shows nothing"
    assert abs(means[0] - means[1]) < 0.02


def files(path):
    names = ("model.safetensors", "checkpoint.safetensors", "metrics.jsonl")
    return [_without_times((path / name).read_bytes(), name) for name in names]


def _without_times(data, name):
    if not name.endswith("jsonl"):
        return data
    return [line.partition(b'"seconds"')[0] for line in data.splitlines()]


def test_workers_and_other_pythons_change_no_bit(tmp_path):
    config = quick(device_backend="native")
    runs = {
        "one": config,
        "two": replace(config, workers=2),
        "apart": replace(config, workers=2, device=replace(config.device, python=sys.executable)),
    }
    found = [files(play(c, tmp_path / name).result.path) for name, c in runs.items()]
    assert found[0] == found[1] == found[2]


def test_a_resumed_run_keeps_its_devices(tmp_path):
    whole = play(quick(device_backend="auto"), tmp_path / "whole").result.path

    class StopError(Exception):
        pass

    class Stopping(Silent):
        def round_done(self, record):
            if record["round_number"] == 2:
                raise StopError

    with pytest.raises(StopError):
        fedtiny.run(quick(device_backend="auto"), out=tmp_path / "cut", reporter=Stopping())
    assert configs.load(tmp_path / "cut/config.toml").device_backend == "native"
    fedtiny.resume(tmp_path / "cut", reporter=Silent())
    assert files(tmp_path / "cut") == files(whole)


def test_another_python_is_for_native_devices():
    python = {"python": sys.executable}
    with pytest.raises(ConfigError, match="--device-backend native"):
        backend(device=python, device_backend="torch")
    with pytest.raises(ConfigError, match=r"--device\.python"):
        backend(device=python, density=0.9)


def planned(budget, **settings):
    settings = {"memory_model": "device", "device_backend": "auto"} | settings
    assembly = assemble(quick(memory_budget=budget, **settings))
    assembly.server.transport.close()
    return assembly.config


def test_a_budget_chooses_how_native_devices_compute_and_leaves_the_density():
    ample, tight = planned("10MB"), planned("1MB")
    assert ample.density == tight.density == 0.1
    assert (ample.train.batch_size, ample.device.storage) == (32, "float32")
    assert tight.train.batch_size < 32
    assert tight.device.storage == "float16"


@pytest.mark.parametrize("method", ["fedavg", "lotteryfl", "small_model"])
def test_a_budget_holds_the_densest_model_of_a_run(method):
    settings = {"device_backend": "native", "memory_budget": "8MB", "pruning": {"budgets": "flow"}}
    assembly = assemble(quick(method=method, **settings))
    assembly.server.transport.close()
    assert assembly.arena(assembly.server.theta.mask) <= 8_000_000


def test_a_budget_that_no_batch_fits_is_refused_with_what_is_needed():
    with pytest.raises(FedTinyError, match=r"needs at least .* MB"):
        planned("10kB")


def test_a_budget_for_torch_devices_chooses_the_density():
    chosen = planned("5MB", device_backend="torch")
    assert chosen.density != 0.1
    assert chosen.train.batch_size == 32


def test_where_no_density_fits_torch_devices_take_smaller_batches():
    chosen = planned("1MB", device_backend="torch")
    assert (chosen.density, chosen.device_backend) == (0.1, "torch")
    assert 2 <= chosen.train.batch_size < 32
    assert planned("4MB", method="fedavg").device_backend == "torch", "natives would be slower"


def test_a_planned_run_says_so_and_resumes(tmp_path, capsys):
    config = quick(memory_budget="1.5MB", memory_model="device", device_backend="auto")
    result = fedtiny.run(config, out=tmp_path / "run")
    said = capsys.readouterr().out
    assert re.search(r"to fit 1\.5MB: density 0\.1, batches of \d+, activations in float", said)
    told = r"memory of a device: \S+ kB as the paper counts, .* 1\.\d* MB in the arena of a native"
    assert re.search(told, said)
    assert fedtiny.resume(result.path, reporter=Silent()).accuracy == result.accuracy
