"""A run on the GPU simulator: who is asked to play it, and that it repeats and resumes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedtiny
from fedtiny import methods, models
from fedtiny.config import Config
from fedtiny.devices.executors import Task
from fedtiny.devices.simulator import Simulator
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.messages import Request
from fedtiny.federation.messages import train as train_verb
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.process import Launch
from fedtiny.runs import assembly, resolve
from fedtiny.runs.checkpoint import load_checkpoint, save_checkpoint
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reporter import Silent
from fedtiny.runs.resolve import resolved

from ...runs.tiny import differences, essence, stop, train
from ..tiny import random_mask
from .rig import first_values
from .twins import quick, resume_in_a_new_process, small

# Who plays the devices


class Shouting(Method):
    """Brings Python of its own for the devices."""

    name = "shouting"
    device_verbs = {"shout": lambda work: None}  # noqa: RUF012


@pytest.fixture
def _a_method_with_verbs(monkeypatch):
    known = methods.find
    monkeypatch.setattr(
        methods, "find", lambda name: Shouting if name == "shouting" else known(name)
    )


def chosen(monkeypatch, gpu, **named):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    return resolved(Config(**named), None, None).simulator


@pytest.mark.parametrize(
    ("asked", "gpu", "expected"),
    [
        ("auto", False, "reference"),
        ("auto", True, "gpu"),
        ("reference", True, "reference"),
        ("gpu", True, "gpu"),
        ("gpu", False, "gpu"),
    ],
)
def test_a_gpu_plays_the_devices_where_there_is_one_or_it_is_asked_for(
    monkeypatch, asked, gpu, expected
):
    assert chosen(monkeypatch, gpu, simulator=asked) == expected


@pytest.mark.usefixtures("_a_method_with_verbs")
def test_a_method_with_python_of_its_own_for_devices_runs_on_the_reference(monkeypatch):
    assert chosen(monkeypatch, True, method="shouting") == "reference"
    with pytest.raises(
        ConfigError,
        match=r"method 'shouting' brings Python of its own .* use --simulator reference",
    ):
        chosen(monkeypatch, True, method="shouting", simulator="gpu")


def test_the_gpu_simulator_needs_no_worker_processes(monkeypatch):
    monkeypatch.setattr(resolve, "cores", lambda: 8)
    assert resolved(Config(simulator="gpu"), None, None).workers == 1


@pytest.mark.parametrize("name", ["lanes", "cards"])
def test_there_is_at_least_one_lane_and_one_card(name):
    with pytest.raises(ConfigError, match=rf"--gpu\.{name} must be at least 1, got 0"):
        small(gpu={name: 0})


def test_more_ranks_than_the_machine_has_gpus_are_refused_clearly(monkeypatch):
    monkeypatch.setattr(resolve, "has_gpu", lambda: True)
    monkeypatch.setattr(resolve, "gpu_count", lambda: 2)
    monkeypatch.setattr(resolve, "launch", lambda: Launch(6, 8, local_rank=2, local_size=4))
    with pytest.raises(ConfigError, match=r"has 2 GPUs; use torchrun --nproc-per-node 2"):
        assembly.assemble(small())


def test_the_choice_is_saved_with_the_run(tmp_path):
    path = train(small(rounds=1), tmp_path / "run").path
    assert 'simulator = "gpu"' in (path / "config.toml").read_text()


# Whole runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run to its end; its folder is not to be changed."""
    return train(small(), tmp_path_factory.mktemp("finished") / "run")


def test_a_run_repeats_to_the_last_bit(finished, tmp_path):
    again = train(small(), tmp_path / "again")
    assert differences(finished.path, again.path) == []


@pytest.mark.parametrize("gpu", [{"lanes": 1}, {"lanes": 3}, {"cards": 2}])
def test_lanes_and_cards_change_nothing_of_a_run(finished, tmp_path, gpu):
    other = train(small(gpu=gpu), tmp_path / "other")
    assert set(differences(finished.path, other.path)) <= {"config", "result"}
    assert other.accuracy == finished.accuracy


@pytest.mark.parametrize("method", ["fedtiny", "feddst", "prunefl", "fedsgc", "fedrts", "ssfl"])
def test_messages_that_are_really_encoded_change_nothing(tmp_path, method):
    counted, encoded = (
        train(small(method=method, rounds=2, fleet={"wire": wire}), tmp_path / wire).path
        for wire in ("count", "encode")
    )
    assert set(differences(counted, encoded)) <= {"config", "partition"}  # which knows settings


def test_replies_of_lanes_are_clipped_and_averaged_robustly():
    ready = assembly.assemble(small(robustness={"mean": "median", "clip_norm": 0.01}))
    server, sent = ready.server, ready.server.theta
    request = Request("train", "fedtiny", 0, (train_verb(1),), sent)
    try:
        shards = server.transport.shards.values()
        replies = list(ready.executor.answers([Task(shard, request) for shard in shards]))
        found = server.transport.ask(range(3), request, "mean").theta
    finally:
        server.transport.close()
    steps = np.stack([reply.theta.vector.astype(np.float64) - sent.vector for reply in replies])
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    assert (lengths > 0.01).all()
    own = sent.vector + steps * (0.01 / lengths)
    np.testing.assert_array_equal(found.vector, np.median(own.astype(np.float32), axis=0))


@pytest.mark.slow
def test_runs_resumed_in_a_new_process_come_to_the_same_end(tmp_path):
    pairs = []
    for method in ("fedtiny", "feddst", "prunefl"):
        config = small(method=method, fleet={"fail_rate": 0.1})
        whole = train(config, tmp_path / method / "whole").path
        pairs.append((whole, stop(config, tmp_path / method / "stopped", 2)))
    resume_in_a_new_process(*(path for _, path in pairs))
    assert [differences(whole, path) for whole, path in pairs] == [[]] * 3


def test_dropout_is_the_same_after_resuming(tmp_path):
    config = small(model="vgg11", width=1, rounds=2, fleet={"devices": 2})
    config = replace(config, data=replace(config.data, limit_train=100, limit_test=10))
    whole = train(config, tmp_path / "whole").path
    path = stop(config, tmp_path / "stopped", 1)
    fedtiny.resume(path, reporter=Silent())
    assert differences(whole, path) == []


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    path = train(small(rounds=1), tmp_path / "run").path
    before = essence(path)
    fedtiny.resume(path, reporter=Silent())
    assert essence(path) == before


def test_half_precision_runs_to_its_end_and_is_near(finished, tmp_path):
    half = train(small(gpu={"precision": "bf16"}), tmp_path / "half")
    theirs, ours = (result.metrics[-1]["train_loss"] for result in (finished, half))
    assert ours == pytest.approx(theirs, rel=0.1)


def test_a_learning_rate_beyond_reason_ends_a_run_with_advice(tmp_path):
    config = small(rounds=1, train={"optimizer": "sgd", "lr": 1e30, "local_epochs": 4})
    with pytest.raises(FedTinyError, match=r"lower --train\.lr"):
        train(config, tmp_path / "run")


def test_a_checkpoint_of_a_sparse_resnet_is_small(tmp_path):
    model = models.build("resnet18", (3, 32, 32), 10)
    theta = first_values(model, random_mask(models.analyze(model, (3, 32, 32)), 0.01))
    config = quick(simulator="gpu", density=0.01)
    server = Server(config, Simulator(None, [], config), theta)
    folder = RunFolder(tmp_path)
    save_checkpoint(folder, server)
    assert folder.checkpoint.stat().st_size < 8_000_000
    fresh = Server(config, Simulator(None, [], config), first_values(model, theta.mask))
    load_checkpoint(folder, fresh)
    assert fresh.theta.version == theta.version
    assert np.isclose(theta.mask.density, 0.01, rtol=0.05)
