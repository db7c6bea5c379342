"""Lanes choose kernels for the whole process, and leave its switches as they found them."""

import gc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest
import torch

from fedtiny.devices.gpu import engine as engines
from fedtiny.devices.gpu import kernels, stream_executor
from fedtiny.devices.gpu.kernels import fused, rounding
from fedtiny.devices.gpu.step import Step
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import evaluate, top_gradients, train

from ...runs import tiny as runs
from ..tiny import lab, tasks
from .rig import lanes_of
from .twins import small

CUDNN, MATMUL = torch.backends.cudnn, torch.backends.cuda.matmul
SWITCHES = [(CUDNN, "allow_tf32"), (MATMUL, "allow_tf32")]
SWITCHES += [(CUDNN, "deterministic"), (CUDNN, "benchmark")]
CALLER = (True, True, False, True)  # which is none of what lanes choose


def switches():
    return tuple(getattr(*switch) for switch in SWITCHES)


def turn(values):
    for switch, value in zip(SWITCHES, values, strict=True):
        setattr(*switch, value)


@pytest.fixture(autouse=True)
def before():
    """The switches of a caller who chose otherwise than lanes do."""
    really = switches()
    turn(CALLER)
    yield CALLER
    turn(really)


@pytest.mark.parametrize(
    ("precision", "tensor_cores"), [("fp32", False), ("tf32", True), ("bf16", False)]
)
def test_tensor_cores_round_only_where_that_is_asked_for(before, precision, tensor_cores):
    executor = lanes_of(lab(), 1, precision=precision, deterministic=True)
    assert switches() == (tensor_cores, tensor_cores, True, False)
    executor.close()
    assert switches() == before


def test_closing_twice_spoils_nothing_that_was_chosen_since(before):
    executor = lanes_of(lab(), 1)
    executor.close()
    MATMUL.allow_tf32 = False
    chosen = switches()
    executor.close()
    assert switches() == chosen != before


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_crews_the_one_still_open_keeps_its_choice(before, first):
    executors = [lanes_of(lab(), 1, precision="tf32"), lanes_of(lab(), 1, precision="fp32")]
    wanted = [(True, True, True, False), (False, False, True, False)]
    assert switches() == wanted[1]
    executors[first].close()
    assert switches() == wanted[1 - first]
    executors[1 - first].close()
    assert switches() == before


def test_lanes_that_open_again_choose_again(before):
    bench = lab()
    executor = lanes_of(bench, 1)
    executor.close()
    assert len([*executor.answers(tasks(bench, evaluate()))]) == len(bench.shards)
    assert switches() == (False, False, True, False)
    executor.close()
    assert switches() == before


def test_lanes_that_nobody_closed_are_undone_with_them(before):
    executor = lanes_of(lab(), 1)
    assert switches() != before
    del executor
    gc.collect()
    assert switches() == before


def full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_run_leaves_the_switches_as_they_were_whether_it_ends_well_or_not(
    before, tmp_path, monkeypatch
):
    during, really = [], stream_executor.reply_or_error

    def noted(*given):
        during.append(switches())
        return really(*given)

    monkeypatch.setattr(stream_executor, "reply_or_error", noted)
    runs.train(small(rounds=1), tmp_path / "well")
    assert {*during} == {(False, False, True, False)}
    assert switches() == before
    monkeypatch.setattr(stream_executor, "reply_or_error", full)
    with pytest.raises(FedTinyError, match="memory is full"):
        runs.train(small(rounds=1), tmp_path / "ill")
    assert switches() == before


@pytest.mark.skipif(not hasattr(MATMUL, "fp32_precision"), reason="only newer versions have it")
def test_a_caller_who_chose_in_the_newer_way_finds_that_again():
    MATMUL.fp32_precision = "ieee"
    CUDNN.conv.fp32_precision = "ieee"  # and now allow_tf32 cannot be told
    with pytest.raises(RuntimeError):
        switches()
    lanes_of(lab(), 1, precision="tf32").close()
    assert (MATMUL.fp32_precision, CUDNN.conv.fp32_precision) == ("ieee", "ieee")


# For a part of the work


def tensor_cores():
    return switches()[:2]


def rounded(tf32, work):
    with rounding(tf32):
        return work()


def test_rounding_holds_within_and_is_put_back_whatever_happens():
    turn((False, False, True, False))
    assert rounded(True, tensor_cores) == (True, True)
    assert rounded(None, tensor_cores) == (False, False)
    with pytest.raises(torch.OutOfMemoryError):
        rounded(True, full)
    assert tensor_cores() == (False, False)


def test_threads_that_round_in_different_ways_take_turns():
    wanted = [True, False] * 50

    def looks():
        return {tensor_cores() for _ in range(100)}

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda tf32: rounded(tf32, looks), wanted)] == [
            {(tf32, tf32)} for tf32 in wanted
        ]


def test_threads_that_round_in_the_same_way_need_not_wait():
    together = Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        waits = partial(together.wait, timeout=60)
        assert {*pool.map(lambda _: rounded(True, waits), range(4))} == {0, 1, 2, 3}


def test_top_gradients_are_exact_whatever_another_lane_sums(monkeypatch):
    seen, really = [], engines.feed_gradients

    def noted(*given, **how):
        seen.append(tensor_cores())
        return really(*given, **how)

    monkeypatch.setattr(engines, "feed_gradients", noted)
    bench = lab(sizes=(12,) * 6)
    program = train(3, sum_dense_gradients=True), top_gradients({"conv1.weight": 3})
    executor = lanes_of(bench, 2, precision="bf16")
    [*executor.answers(tasks(bench, *program))]
    executor.close()
    assert seen == [(False, False)] * 6


@pytest.mark.parametrize(("precision", "in_sums"), [("bf16", True), ("fp32", False)])
def test_gradients_are_summed_with_tensor_cores_unless_fp32_was_asked_for(
    monkeypatch, precision, in_sums
):
    seen, really = set(), Step.once

    def noted(step):
        seen.add((len(step.sums) > 0, tensor_cores()))
        really(step)

    monkeypatch.setattr(Step, "once", noted)
    bench = lab(sizes=(12, 2))  # the second has less than a batch
    executor = lanes_of(bench, 2, precision=precision)
    for summing in (False, True):
        [*executor.answers(tasks(bench, train(1, sum_dense_gradients=summing)))]
    executor.close()
    assert seen == {(False, (False, False)), (True, (in_sums, in_sums))}


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_compiler_may_time_kernels_only_where_bits_do_not_count(
    monkeypatch, deterministic, known
):
    given = {}
    monkeypatch.setattr(torch, "compile", lambda function, **named: given.update(named) or function)
    older = type("Older", (), {"deterministic": False} if known else {})
    monkeypatch.setattr(kernels, "inductor", older)
    executor = lanes_of(lab(), 1, deterministic=deterministic)
    assert fused(len) is len
    executor.close()
    assert given["options"] == ({"deterministic": True} if deterministic and known else {})
