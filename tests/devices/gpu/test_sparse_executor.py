"""Lanes with sparse kernels: devices are trained together first, and the rest is as ever."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import fedtiny
from fedtiny.devices.gpu import joint_training, stream_executor
from fedtiny.devices.gpu.sparse import choice, emulation
from fedtiny.devices.gpu.sparse.trainer import Trainer
from fedtiny.devices.workers import Task
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.messages import (
    drop_scores,
    evaluate,
    prune_and_grow,
    shared_gradients,
    top_gradients,
    train,
)
from fedtiny.runs import resolve
from fedtiny.runs.reporter import Lines, Silent
from fedtiny.sparse.mask import Mask

from ...runs.tiny import differences, essence, stop
from ...runs.tiny import train as run
from ..tiny import TinyNet, everything, lab, seeded, settings, tasks
from .rig import assert_near, lanes_of
from .twins import (
    assert_near_until_then,
    assert_the_same_candidate,
    assert_the_same_first_adjustment,
    play,
    quick,
    small,
    twins,
)

pytestmark = pytest.mark.skipif(bool(emulation.unavailable()), reason="needs a C++ compiler")

SIZES = (20, 3, 12, 2, 9)  # a batch is four: two of the devices have less
COUNTS = {"conv1.weight": 7, "hidden.weight": 3}


@pytest.fixture
def hire():
    """Lanes that are closed again."""
    executors = []

    def hire_(*given, **named):
        executors.append(lanes_of(*given, **{"kernels": "sparse"} | named))
        return executors[-1]

    yield hire_
    for executor in executors:
        executor.close()


def bench_of(*sizes, **changes):
    return lab(settings(**changes), sizes=sizes or SIZES, model=seeded(TinyNet, 0.3))


@pytest.fixture
def together(monkeypatch):
    """The devices that each trainer was given."""
    seen, really = [], Trainer.train

    def watched(self, theta, trainings, rule):
        seen.append([training.shard.device for training in trainings])
        return really(self, theta, trainings, rule)

    monkeypatch.setattr(Trainer, "train", watched)
    return seen


PROGRAMS = {
    "fedavg": (train(2),),
    "fedtiny": (train(1), top_gradients(COUNTS)),
    "feddst": (train(1), prune_and_grow(COUNTS), train(1)),
    "evaluated": (train(1), evaluate()),
    "fisher": (train(1), top_gradients(COUNTS, fisher=True)),
    "shared": (train(1), shared_gradients(COUNTS, seed=3)),
    "fedfit": (train(1), drop_scores(COUNTS)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_replies_are_those_of_dense_lanes(hire, together, name):
    bench = bench_of(train={"optimizer": "sgd"})
    work = tasks(bench, *PROGRAMS[name])
    sparse, dense = hire(bench, 1), hire(bench, 1, kernels="dense")
    for ours, theirs in zip(sparse.answers(work), dense.answers(work), strict=True):
        assert_near(ours, theirs, rtol=1e-3, atol=1e-4)
    assert together == [[0, 2, 4]], "smaller devices have smaller batches, and a lane to themselves"
    assert sparse.account()["kernels"] == ["dense", "sparse"]
    assert dense.account()["kernels"] == ["dense"]


RECIPE = {"lr_schedule": "cosine", "lr_warmup": 2, "decay_norms": False, "proximal_mu": 0.5}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_recipe_is_that_of_dense_lanes(hire, optimizer):
    recipe = RECIPE | {"optimizer": optimizer, "weight_decay": 0.1}
    bench, plain = bench_of(train=recipe), bench_of(train={"optimizer": optimizer})
    work = tasks(bench, train(2))
    sparse, dense = hire(bench, 1), hire(bench, 1, kernels="dense")
    usual = [*hire(plain, 1).answers(tasks(plain, train(2)))]
    for i, (ours, theirs) in enumerate(zip(sparse.answers(work), dense.answers(work), strict=True)):
        assert_near(ours, theirs, rtol=1e-3, atol=1e-4)
        assert np.abs(ours.theta.vector - usual[i].theta.vector).max() > 1e-3


def test_the_number_of_streams_changes_no_bit(hire, together):
    bench = bench_of()
    found = [
        [*map(everything, hire(bench, lanes).answers(tasks(bench, *program)))]
        for program in (PROGRAMS["feddst"],)
        for lanes in (1, 2, 3)
    ]
    assert found[0] == found[1] == found[2]
    assert together[0] == [0, 2, 4]
    assert sorted(together[1:3]) == [[0, 4], [2]], "dealt by their steps"


def test_more_devices_than_there_is_room_for_change_nothing(hire, monkeypatch):
    bench = bench_of()
    whole = [*map(everything, hire(bench, 1).answers(tasks(bench, train(1))))]
    monkeypatch.setattr(stream_executor, "ROOM", 2)
    executor = hire(bench, 1)
    assert [*map(everything, executor.answers(tasks(bench, train(1))))] == whole
    assert [trainer.network.devices for trainer in executor._joint.trainers] == [2]


def test_only_those_that_begin_with_a_training_from_the_same_theta_train_together(hire, together):
    bench = bench_of()
    executor = hire(bench, 1)
    others = (evaluate(), train(1, sum_dense_gradients=True), train(1, extrude=COUNTS))
    for verb in others:
        replies = [*executor.answers(tasks(bench, verb))]
        assert [reply.device for reply in replies] == [*range(len(SIZES))]
    assert together == []
    assert executor._joint.trainers == [], "nothing is made ready for nothing"
    mixed = [*tasks(bench, train(1), devices=(0, 2))]
    other = tasks(bench, train(1), devices=(4,), theta=bench.theta(seed=5))
    assert len([*executor.answers([*mixed, *other])]) == 3
    assert together == [[0, 2]]


def test_a_theta_that_came_over_the_wire_is_known_by_its_version(hire, together):
    bench = bench_of()
    copies = [
        Task(task.shard, replace(task.request, theta=bench.theta()))
        for task in tasks(bench, train(1))
    ]
    assert len({id(task.request.theta) for task in copies}) == len(SIZES)
    [*hire(bench, 1).answers(copies)]
    assert together == [[0, 2, 4]]


def test_a_device_that_diverges_says_so(hire):
    bench = lab(settings(train={"optimizer": "sgd", "lr": 1e30}), sizes=(12, 9))
    outcomes = [*hire(bench, 1).answers(tasks(bench, train(3)))]
    assert all(isinstance(outcome, FedTinyError) for outcome in outcomes)
    assert all("diverged on device" in str(outcome) for outcome in outcomes)


def test_masks_may_change_from_question_to_question(hire):
    bench = bench_of()
    used, fresh = hire(bench, 1), lambda: hire(bench, 1)
    for theta in (bench.theta(seed=1), bench.theta(seed=2), bench.start, bench.theta(0.05)):
        one, other = (
            [*map(everything, executor.answers(tasks(bench, train(1), theta=theta)))]
            for executor in (used, fresh())
        )
        assert one == other


def test_auto_goes_by_the_operations_that_a_mask_keeps(hire, together, monkeypatch):
    bench = bench_of()
    executor = hire(bench, 1, kernels="auto")
    [*executor.answers(tasks(bench, train(1), theta=bench.theta(0.3)))]
    assert together == []
    assert executor.account()["kernels"] == ["dense"]
    monkeypatch.setattr(joint_training, "CROSSOVER", 0.5)
    [*executor.answers(tasks(bench, train(1), theta=bench.theta(0.3)))]
    assert together == [[0, 2, 4]]
    [*executor.answers(tasks(bench, train(1), theta=bench.start))]
    assert len(together) == 1, "decided anew for each request"
    assert executor.account()["kernels"] == ["dense", "sparse"]


# Whole runs

SPARSE = {"gpu": {"kernels": "sparse", "channels_last": False}, "train": {"batch_size": 16}}
RUNS = {
    "fedtiny": {"model": "small", "width": 16, "density": 0.3, "rounds": 2},
    "feddst": {"model": "small", "width": 16, "density": 0.3, "rounds": 1},
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_near_the_reference(name, tmp_path):
    sgd = {"optimizer": "sgd"} if name == "feddst" else {}
    config = quick(method=name, **RUNS[name], **SPARSE | {"train": SPARSE["train"] | sgd})
    both = twins(config, tmp_path)
    if name == "fedtiny":
        assert_the_same_candidate(both)
    assert_the_same_first_adjustment(both)
    assert_near_until_then(both)


def sparse_small(**gpu):
    return small(gpu={"kernels": "sparse"} | gpu, train={"batch_size": 8})


def test_a_run_repeats_resumes_and_does_not_depend_on_lanes(tmp_path):
    finished = run(sparse_small(), tmp_path / "run")
    assert 'kernels = "sparse"' in (finished.path / "config.toml").read_text()
    assert finished.path.joinpath("result.json").read_text().count('"sparse"') == 1
    again = run(sparse_small(lanes=3), tmp_path / "again")
    assert set(differences(finished.path, again.path)) <= {"config", "result"}
    stopped = stop(sparse_small(), tmp_path / "stopped", 1)
    fedtiny.resume(stopped, reporter=Silent())
    assert essence(stopped) == essence(finished.path)


def test_on_a_cpu_auto_is_dense_without_a_word(tmp_path):
    path = run(small(rounds=1), tmp_path / "run").path
    assert 'kernels = "dense"' in (path / "config.toml").read_text()


# What cannot be


class Frozen(TinyNet):
    def __init__(self):
        super().__init__()
        self.conv1.weight.requires_grad_(False)


class Spare(TinyNet):
    def __init__(self):
        super().__init__()
        self.spare = nn.Parameter(torch.ones(3))


class Channels(TinyNet):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout2d(0.1)

    def forward(self, x):
        return super().forward(self.drop(x))


class Between(TinyNet):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return super().forward(self.drop(x))


class Branching(TinyNet):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class Twice(TinyNet):
    def __init__(self):
        super().__init__()
        self.again = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x):
        return super().forward(self.again(torch.relu(self.again(x))))


class Dilated(TinyNet):
    def __init__(self):
        super().__init__()
        self.wide = nn.Conv2d(1, 1, 3, padding=2, dilation=2)

    def forward(self, x):
        return super().forward(self.wide(x))


class Bounded(TinyNet):
    def forward(self, x):
        return super().forward(F.relu6(x))


REASONS = {
    Dilated: r"it has a convolution with dilation",
    Bounded: r"it has a relu6 between its convolutions",
    Twice: r"'again' runs twice in a pass",
    Frozen: r"'conv1\.weight' is frozen \(requires_grad is False\)",
    Spare: r"the network never uses 'spare'",
    Channels: r"it has a dropout between its convolutions",
    Between: r"it has a dropout between its convolutions",
    Branching: r"the network cannot be traced",
}
USE_DENSE = r"^--gpu\.kernels sparse cannot train .*{}.*; use --gpu\.kernels dense$"


def chosen(monkeypatch, network, **gpu):
    """What is chosen where there is a GPU; the CPU stands for it."""
    bench = lab(model=seeded(network))
    config = replace(
        bench.config, simulator="gpu", gpu=replace(bench.config.gpu, **{"precision": "fp32"} | gpu)
    )
    monkeypatch.setattr(resolve, "has_gpu", lambda: True)
    monkeypatch.setattr(resolve, "card", lambda: torch.device("cpu"))
    graph = fedtiny.models.traced(bench.model, (1, 8, 8))
    return resolve.choose_kernels(config, bench.model, bench.param_spec, graph)


@pytest.mark.parametrize("network", REASONS)
def test_where_a_network_cannot_be_sparse_auto_is_dense_and_sparse_is_refused(monkeypatch, network):
    kernels, note = chosen(monkeypatch, network)
    assert kernels == "dense"
    assert re.match(rf"dense kernels train the devices: .*{REASONS[network]}", note)
    with pytest.raises(ConfigError, match=USE_DENSE.format(REASONS[network])):
        chosen(monkeypatch, network, kernels="sparse")


def test_auto_is_left_to_the_masks_where_sparse_kernels_are_possible(monkeypatch):
    assert chosen(monkeypatch, TinyNet) == ("auto", "")
    assert chosen(monkeypatch, TinyNet, kernels="dense") == ("dense", "")


def test_without_a_compiler_auto_is_dense_and_sparse_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(choice, "unavailable", lambda device: "sparse kernels need a miracle")
    assert chosen(monkeypatch, TinyNet) == (
        "dense",
        "dense kernels train the devices: sparse kernels need a miracle",
    )
    with pytest.raises(ConfigError, match=USE_DENSE.format("need a miracle")):
        chosen(monkeypatch, TinyNet, kernels="sparse")


def test_an_odd_batch_of_pairs_is_refused(monkeypatch):
    odd = settings(train={"batch_size": 5})
    bench = lab(odd)
    config = replace(odd, simulator="gpu", gpu=replace(odd.gpu, kernels="sparse"))
    graph = fedtiny.models.traced(bench.model, (1, 8, 8))
    with pytest.raises(ConfigError, match=USE_DENSE.format("batch-size 5 is odd")):
        resolve.choose_kernels(config, bench.model, bench.param_spec, graph)


def test_the_reason_is_told_at_the_start_of_a_run(tmp_path, monkeypatch, capsys):
    from rich.console import Console

    really = resolve.choose_kernels
    monkeypatch.setattr(
        resolve, "choose_kernels", lambda *given: (really(*given)[0], "dense kernels: a reason")
    )
    play(small(rounds=1), tmp_path / "silent")
    fedtiny.run(small(rounds=1), out=tmp_path / "told", reporter=Lines(Console(soft_wrap=True)))
    assert capsys.readouterr().out.count("dense kernels: a reason") == 1


def test_a_full_memory_names_dense_kernels_as_a_way(hire, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "train", full)
    bench = bench_of()
    with pytest.raises(FedTinyError, match=r"memory is full .*--gpu\.kernels dense"):
        [*hire(bench, 1).answers(tasks(bench, train(1)))]


def test_a_full_mask_is_no_obstacle(hire):
    bench = bench_of()
    theta = bench.start.remasked(Mask.full(bench.param_spec))
    replies = [*hire(bench, 1).answers(tasks(bench, train(1), theta=theta))]
    assert all(np.isfinite(reply.theta.vector).all() for reply in replies)
