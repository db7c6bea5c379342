"""What only a GPU can show: the same criteria on CUDA, with steps recorded as graphs."""

import numpy as np
import pytest
import torch

from fedtiny.devices.executors import Task
from fedtiny.devices.gpu import joint_training
from fedtiny.devices.gpu import step as steps
from fedtiny.errors import ModelError
from fedtiny.federation.messages import Request, prune_and_grow, top_gradients, train

from ...runs import tiny as runs
from ..tiny import TinyNet, everything, lab, seeded, settings
from .rig import DRAWING, lanes_of
from .twins import (
    assert_near_until_then,
    assert_the_same_candidate,
    assert_the_same_first_adjustment,
    play,
    quick,
    resume_in_a_new_process,
    small,
    twins,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # drivers and compilers have warnings of their own
]
CUDA = torch.device("cuda", 0)
TRAINING = (train(2),)
COUNTS = {"conv1.weight": 7, "hidden.weight": 3}
RECIPE = {"lr_warmup": 1, "decay_norms": False, "proximal_mu": 1.0}
RUNS = {
    "fedtiny": {"train": {"lr": 1e-4}},
    "feddst": {"model": "small", "width": 16, "density": 0.3, "train": {"optimizer": "sgd"}},
    "prunefl": {"model": "small", "width": 16, "density": 0.3},
}


def replies(bench, lanes, theta=None, program=TRAINING, **named):
    """What every device of a bench answers, played on the GPU."""
    executor = lanes_of(bench, lanes, device=CUDA, **named)
    request = Request("train", "fedtiny", 0, program, theta or bench.theta())
    try:
        return [*executor.answers([Task(shard, request) for shard in bench.shards])]
    finally:
        executor.close()


@pytest.mark.parametrize("method", RUNS)
def test_a_run_on_cuda_is_the_reference_s_until_the_first_adjustment(tmp_path, method):
    both = twins(quick(method=method, rounds=1, **RUNS[method]), tmp_path)
    if method == "fedtiny":
        assert_the_same_candidate(both)
    assert_near_until_then(both)
    assert_the_same_first_adjustment(both)


def test_half_precision_compiled_and_recorded_trains_as_well(tmp_path):
    plain, fast = (
        play(quick(simulator="gpu", gpu=gpu), tmp_path / name).result
        for name, gpu in (("plain", {}), ("fast", {"precision": "bf16", "compile": True}))
    )
    for ours, theirs in zip(fast.metrics, plain.metrics, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=0.05)
    assert fast.metrics[-1]["train_loss"] < fast.metrics[0]["train_loss"]


@pytest.mark.parametrize("training", [{}, RECIPE], ids=["plain", "recipe"])
def test_recorded_steps_are_the_unrecorded_ones_but_for_rounding(training):
    """Also at another rate than that of the recording, and held to what was received."""
    bench = lab(settings(train=training), model=seeded(TinyNet, 0.3))
    recorded, plain = (replies(bench, 1, graphs=graphs) for graphs in (True, False))
    for ours, theirs in zip(recorded, plain, strict=True):
        assert ours.metrics["loss"] == pytest.approx(theirs.metrics["loss"], rel=1e-4)
        np.testing.assert_allclose(ours.theta.vector, theirs.theta.vector, rtol=1e-3, atol=1e-4)


def test_growing_and_dropping_records_nothing_anew(monkeypatch):
    recorded, really = [], steps.CapturedGraph

    def counted(*given):
        recorded.append(given)
        return really(*given)

    monkeypatch.setattr(steps, "CapturedGraph", counted)
    bench = lab(sizes=(12, 12, 20))
    theta = bench.theta(0.3)
    program = (train(1), prune_and_grow(COUNTS), train(1), top_gradients(COUNTS))
    executor = lanes_of(bench, 1, device=CUDA)
    for given in (theta, bench.theta(0.1, seed=1), theta):
        request = Request("train", "fedtiny", 0, program, given)
        found = [*executor.answers([Task(shard, request) for shard in bench.shards])]
    executor.close()
    assert len(recorded) == 1
    fresh = replies(bench, 1, theta, program)
    assert [*map(everything, found)] == [*map(everything, fresh)]


def test_several_lanes_give_the_same_bits_as_one():
    bench = lab(sizes=(12, 9, 21, 3, 16), model=seeded(TinyNet, 0.3))
    program = (
        train(1, sum_dense_gradients=True),
        prune_and_grow(COUNTS),
        train(1),
        top_gradients(COUNTS),
    )
    found = [[*map(everything, replies(bench, lanes, None, program))] for lanes in (1, 2, 4)]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("kind", DRAWING)
def test_a_network_that_draws_by_itself_is_refused_clearly(kind):
    with pytest.raises(ModelError, match="draws random numbers by itself"):
        replies(lab(model=seeded(kind)), 1)


def test_dropout_layers_are_no_draws_of_the_network_s_own():
    bench = lab(model=seeded(TinyNet, 0.3))
    before = torch.cuda.get_rng_state(CUDA)
    assert len(replies(bench, 1)) == len(bench.shards)
    assert torch.equal(torch.cuda.get_rng_state(CUDA), before)


MODES = {
    "recorded": {"precision": "bf16", "lanes": 3},
    "compiled": {"precision": "bf16", "lanes": 3, "compile": True},
}


@pytest.fixture(params=MODES)
def gpu(request):
    return MODES[request.param]


@pytest.fixture
def compilers_forget(monkeypatch, tmp_path):
    """Make what was compiled, and which kernels were the fastest, unknown to whoever is next."""

    def forget():
        torch.compiler.reset()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "forgotten"))

    return forget


REPEATED = {
    "resnet18": {"model": "resnet18"},
    "vgg11_small": {"model": "vgg11_small"},
    "dropout": {"model": "vgg11"},
    "second derivatives at the server": {"model": "vgg11", "method": "grasp"},
    "gradient sums of devices large and small": {
        "method": "prunefl",
        "data": {"limit_train": 400},
        "fleet": {"devices": 5},
    },
}


@pytest.mark.parametrize("changes", REPEATED.values(), ids=REPEATED)
def test_a_run_repeats_to_the_last_bit(tmp_path, compilers_forget, changes, gpu):
    config = small(rounds=2, gpu=gpu, **changes)
    one = runs.train(config, tmp_path / "one").path
    compilers_forget()
    other = runs.train(config, tmp_path / "other").path
    assert set(runs.differences(one, other)) <= {"result"}  # which tells of memory


def test_the_network_comes_back_as_plain_as_it_was_given(tmp_path):
    network = runs.train(small(rounds=1, model="vgg11"), tmp_path / "run").network
    assert not any(module._forward_hooks for module in network.modules())
    assert {tensor.device.type for tensor in network.state_dict().values()} == {"cpu"}


def test_a_run_resumed_in_a_new_process_comes_to_the_same_end(tmp_path, compilers_forget, gpu):
    config = small(gpu=gpu)
    whole = runs.train(config, tmp_path / "whole").path
    path = runs.stop(config, tmp_path / "stopped", 2)
    compilers_forget()
    resume_in_a_new_process(path)
    assert set(runs.differences(whole, path)) <= {"result"}


# Sparse kernels

SPARSE = {"kernels": "sparse", "precision": "fp32"}


def test_sparse_kernels_train_as_the_dense_ones():
    bench = lab(model=seeded(TinyNet, 0.3))
    ours, theirs = (replies(bench, 1, **{**SPARSE, "kernels": k}) for k in ("sparse", "dense"))
    for one, other in zip(ours, theirs, strict=True):
        assert one.metrics["loss"] == pytest.approx(other.metrics["loss"], rel=1e-3)
        np.testing.assert_allclose(one.theta.vector, other.theta.vector, rtol=5e-3, atol=5e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_streams_graphs_and_neighbors_change_no_bit_of_sparse_kernels(precision):
    bench = lab(sizes=(21, 12, 9, 30, 17), model=seeded(TinyNet, 0.3))
    program = (train(2), prune_and_grow(COUNTS), train(1), top_gradients(COUNTS))
    gpu = {"kernels": "sparse", "precision": precision, "compile": False}
    found = [
        [*map(everything, replies(bench, lanes, program=program, graphs=graphs, **gpu))]
        for lanes, graphs in ((1, True), (1, True), (2, True), (3, True), (2, False))
    ]
    assert found[0] == found[1] == found[2] == found[3]
    for one, other in zip(found[0], found[4], strict=True):
        assert one[0][2]["loss"] == pytest.approx(other[0][2]["loss"], rel=1e-3)


@pytest.mark.parametrize("method", ["fedtiny", "feddst"])
def test_a_sparse_run_is_the_reference_s_until_the_first_adjustment(tmp_path, method):
    changes = RUNS[method] | {"gpu": {"kernels": "sparse"}}
    changes["train"] = changes.get("train", {}) | {"batch_size": 16}
    both = twins(quick(method=method, rounds=1, **changes), tmp_path)
    if method == "fedtiny":
        assert_the_same_candidate(both)
    assert_near_until_then(both)
    assert_the_same_first_adjustment(both)


def test_auto_takes_sparse_kernels_where_few_operations_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(joint_training, "CROSSOVER", 0.2)  # the stem of so small a network is much
    config = {"model": "small", "width": 16, "density": 0.02, "train": {"batch_size": 16}}
    found = play(quick(simulator="gpu", rounds=1, gpu={"kernels": "auto"}, **config), tmp_path)
    assert '"sparse"' in (found.result.path / "result.json").read_text()
