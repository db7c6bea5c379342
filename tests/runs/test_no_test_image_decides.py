"""What is tested, and how often, changes no byte of a model."""

from dataclasses import replace

import numpy as np
import pytest

from fedtiny import methods
from fedtiny.runs import assembly

from .tiny import tiny, train

NAMES = [method.name for method in methods.BUILT_IN]
FEW = ("fedtiny", "feddst", "snip")
FAST_FEW = [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
TESTED = {
    "permuted labels": ({}, True),
    "a tenth of the test set, every 2 rounds": ({"limit_test": 4, "eval_every": 2}, False),
    "every 5 rounds": ({"eval_every": 5}, False),
}
"""Other ways to test a run: settings, and whether the labels of test images are permuted."""


def config_of(method, limit_test=40, **changes):
    """A run at a rate of learning at which accuracy is up and down from round to round."""
    return tiny(
        method=method,
        seed=2,
        density=0.4,
        rounds=6,
        data={"limit_test": limit_test},
        train={"lr": 0.1},
        pruning={"delta_r": 2, "r_stop": 3, "iterations": 3},
        save_best=True,
        **changes,
    )


@pytest.fixture
def models(monkeypatch, tmp_path):
    """Plays a run in every way to test it, and gives the bytes of each model."""
    load = assembly.load_images

    def permuted(*given):
        data = load(*given)
        labels = np.random.default_rng(0).permutation(data.test.labels)
        return replace(data, test=replace(data.test, labels=labels))

    def play(method, run=train, **settings):
        found = []
        for number, (changes, permutes) in enumerate([({}, False), *TESTED.values()]):
            monkeypatch.setattr(assembly, "load_images", permuted if permutes else load)
            path = tmp_path / str(number)
            run(config_of(method, **settings, **changes), path)
            best = path / "best.safetensors"
            kept = best.read_bytes() if best.exists() else b""  # not where devices are real nodes
            found.append((path / "model.safetensors").read_bytes() + kept)
        return dict(zip(["as ever", *TESTED], found, strict=True))

    return play


def assert_alike(found):
    assert [name for name in found if found[name] != found["as ever"]] == []


@pytest.mark.parametrize("method", NAMES)
def test_in_the_reference_simulator(method, models):
    assert_alike(models(method, simulator="reference", device_backend="torch"))


@pytest.mark.parametrize("method", [name for name in NAMES if name != "fedmef"])  # never native
def test_on_native_devices(method, models):
    assert_alike(models(method, simulator="reference", device_backend="native"))


@pytest.mark.parametrize("method", FAST_FEW)
def test_on_the_gpu_simulator(method, models):
    assert_alike(models(method, simulator="gpu", gpu={"kernels": "dense", "precision": "fp32"}))


@pytest.mark.parametrize("method", FAST_FEW)
def test_over_flower(method, models):
    federation = pytest.importorskip("tests.flower.federation")

    def federate(config, out):
        federation.federate(federation.Grid(), config, out)

    settings = {"simulator": "reference", "device_backend": "torch"}
    assert_alike(models(method, federate, **settings))
