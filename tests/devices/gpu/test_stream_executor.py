"""Lanes side by side: the same bits as one alone, in the order of the jobs."""

import json
import threading

import numpy as np
import pytest
import torch

from fedtiny.devices.gpu import stream_executor as module
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import (
    Verb,
    bn_statistics,
    evaluate,
    losses,
    pool_arrays,
    prune_and_grow,
    top_gradients,
    train,
)
from fedtiny.process import Launch
from fedtiny.sparse import mean

from ..tiny import TinyNet, everything, lab, seeded, settings, tasks
from .rig import lanes_of

SIZES = (20, 3, 12, 2, 9)
COUNTS = {"conv1.weight": 7, "hidden.weight": 3}
PROGRAM = (
    train(1, sum_dense_gradients=True),
    prune_and_grow(COUNTS),
    train(1),
    top_gradients(COUNTS),
)


@pytest.fixture
def hire():
    """Lanes that are closed again."""
    executors = []

    def hire_(*given, **named):
        executors.append(lanes_of(*given, **named))
        return executors[-1]

    yield hire_
    for executor in executors:
        executor.close()


def bench_of(*sizes):
    return lab(sizes=sizes or SIZES, model=seeded(TinyNet, 0.3))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_replies_come_in_the_order_of_the_jobs(hire, count):
    bench, order = bench_of(), (4, 0, 3, 1, 2)
    replies = [*hire(bench, count).answers(tasks(bench, train(1), devices=order))]
    assert [reply.device for reply in replies] == list(order)
    assert [reply.samples for reply in replies] == [SIZES[k] for k in order]


def test_the_number_of_lanes_changes_no_bit(hire):
    bench = bench_of()
    pool = bench.theta(0.5)
    counts = np.array([[100, 200, 20], [110, 150, 25]], np.int32)
    selection = {"theta": pool, "arrays": pool_arrays(counts)}
    found = []
    for count in (1, 2, 3):
        executor = hire(bench, count)
        replies = [
            *executor.answers(tasks(bench, bn_statistics(128), losses(), **selection)),
            *executor.answers(tasks(bench, *PROGRAM, evaluate())),
        ]
        found.append([*map(everything, replies)])
    assert found[0] == found[1] == found[2]
    assert all(found[0][-1]), "nothing is left out"


def test_more_jobs_than_may_wait_change_nothing(hire, monkeypatch):
    bench = bench_of()
    whole = [*map(everything, hire(bench, 2).answers(tasks(bench, train(1))))]
    monkeypatch.setattr(module, "WINDOW", 1)
    monkeypatch.setattr(module, "HELD", 0)
    executor, begun = hire(bench, 2), []
    really = executor._do
    monkeypatch.setattr(
        executor, "_do", lambda task, *more: begun.append(task) or really(task, *more)
    )
    answers = executor.answers(tasks(bench, train(1)))
    first = next(answers)
    assert len(begun) <= 2, "no more replies wait than the window holds"
    assert [everything(reply) for reply in (first, *answers)] == whole


def test_longer_jobs_are_begun_first(hire, monkeypatch):
    bench = bench_of()
    executor, begun = hire(bench, 1), []
    really = executor._do
    monkeypatch.setattr(
        executor, "_do", lambda task, *more: begun.append(len(task.shard)) or really(task, *more)
    )
    assert len([*executor.answers(tasks(bench, evaluate()))]) == 5
    assert begun == sorted(SIZES, reverse=True)


def test_there_may_be_no_job_or_fewer_than_lanes(hire):
    bench = bench_of()
    executor = hire(bench, 3)
    assert [*executor.answers([])] == []
    assert executor.count == 0, "nothing is made ready for nothing"
    assert len([*executor.answers(tasks(bench, evaluate(), devices=(1,)))]) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_a_failure_is_given_in_its_place_and_the_others_go_on(hire, count):
    bench = lab(sizes=(8, 1, 9))
    executor = hire(bench, count)
    for _ in range(2):
        first, second, third = executor.answers(tasks(bench, train(1)))
        assert (first.device, third.device) == (0, 2)
        assert isinstance(second, FedTinyError)
        assert "at least two samples" in str(second)
    outcomes = [*executor.answers(tasks(bench, Verb("somersault")))]
    assert all("cannot 'somersault'" in str(outcome) for outcome in outcomes)


def test_a_device_that_diverges_does_not_spoil_the_others(hire):
    bench = lab(settings(train={"optimizer": "sgd", "lr": 1e30}), sizes=(12, 9, 21))
    executor = hire(bench, 2)
    outcomes = [*executor.answers(tasks(bench, train(3)))]
    assert ["diverged" in str(outcome) for outcome in outcomes] == [True] * 3
    ours, theirs = (
        [*map(everything, each.answers(tasks(bench, evaluate())))]
        for each in (executor, hire(bench, 1))
    )
    assert ours == theirs


def test_a_bug_is_raised_and_the_lane_is_not_lost(hire, monkeypatch):
    bench = bench_of()
    executor = hire(bench, 2)
    monkeypatch.setattr(module, "reply_or_error", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        [*executor.answers(tasks(bench, evaluate()))]
    monkeypatch.undo()
    assert len([*executor.answers(tasks(bench, evaluate()))]) == 5
    engines = [executor._engines.get(timeout=60) for _ in range(2)]
    assert len({*engines}) == 2


def test_masks_and_thetas_may_change_from_question_to_question(hire):
    bench = bench_of()
    one, two = bench.theta(seed=1), bench.theta(seed=2)
    executors = [hire(bench, 2), hire(bench, 1)]
    for theta in (one, one, two, bench.start, one, bench.theta(0.05)):
        many, alone = (
            [reply.theta.version for reply in executor.answers(tasks(bench, train(1), theta=theta))]
            for executor in executors
        )
        assert many == alone


def test_there_are_no_more_lanes_than_devices(hire):
    bench = lab(sizes=(8, 9))
    executor = hire(bench, 7)
    assert len([*executor.answers(tasks(bench, evaluate()))]) == 2
    assert executor.count == 2


def test_the_account_tells_how_the_work_was_done(hire):
    bench = bench_of()
    executor = hire(bench, None)
    [*executor.answers(tasks(bench, evaluate()))]
    account = executor.account()
    assert json.loads(json.dumps(account)) == account
    assert account["simulator"] == "gpu"
    assert account["cards"] == ["cpu"]
    assert account["lanes"] == 4


def test_a_rank_opens_no_more_lanes_than_it_plays_devices(hire, monkeypatch):
    monkeypatch.setattr(module, "launch", lambda: Launch(rank=0, size=2))
    bench = bench_of()
    executor = hire(bench, None)
    [*executor.answers(tasks(bench, evaluate()))]
    assert executor.account()["lanes"] == 3  # five devices on two ranks


def test_closing_twice_or_unopened_or_half_way_does_no_harm(hire):
    bench = bench_of()
    before = threading.active_count()
    unopened, executor = hire(bench, 2), hire(bench, 2)
    unopened.close()
    next(executor.answers(tasks(bench, train(1))))
    executor.close()
    executor.close()
    assert threading.active_count() == before
    assert len([*executor.answers(tasks(bench, evaluate()))]) == 5, "it opens again if it must"


def test_the_model_that_lanes_are_made_of_stays_as_it_is(hire):
    bench = bench_of()
    before = {name: tensor.clone() for name, tensor in bench.model.state_dict().items()}
    [*hire(bench, 2).answers(tasks(bench, train(1)))]
    for name, tensor in bench.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_full_gradients_larger_than_a_piece_are_averaged_over_all_devices(hire, monkeypatch):
    monkeypatch.setattr(mean, "CHUNK", 100)
    bench = bench_of(12, 9, 21)
    executor, average = hire(bench, 1), mean.WeightedMean()
    replies = [*executor.answers(tasks(bench, train(1, sum_dense_gradients=True)))]
    for reply in replies:
        average.add(reply.arrays, reply.samples)
    for name, found in average.dense().items():
        values = [reply.arrays[name].astype(np.float64) for reply in replies]
        expected = np.average(values, axis=0, weights=[reply.samples for reply in replies])
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9, err_msg=name)


def test_values_that_lie_turned_in_memory_are_averaged_like_any_others(monkeypatch):
    monkeypatch.setattr(mean, "CHUNK", 5)
    values = np.arange(48, dtype=np.float32).reshape(2, 3, 4, 2).transpose(0, 3, 1, 2)
    average = mean.WeightedMean()
    average.add({"x": values}, 1)
    average.add({"x": np.ascontiguousarray(values) * 2}, 1)
    average.add({"x": values * 3}, 2)
    assert np.array_equal(average.dense()["x"], values * 2.25)


FEWER = r"memory is full with {} devices side by side; take fewer with --gpu\.lanes"
SMALLER = r"with one device at a time; take a smaller network or --simulator reference"


def full(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(("lanes", "advice"), [(2, FEWER.format(2)), (1, SMALLER)])
def test_a_memory_that_fills_up_in_training_says_what_to_do(hire, monkeypatch, lanes, advice):
    monkeypatch.setattr(module, "reply_or_error", full)
    bench = bench_of()
    with pytest.raises(FedTinyError, match=advice) as raised:
        [*hire(bench, lanes).answers(tasks(bench, train(1)))]
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)


@pytest.mark.parametrize(
    ("fitting", "advice"), [(2, FEWER.format(3)), (1, FEWER.format(2)), (0, SMALLER)]
)
def test_a_memory_that_fills_up_while_lanes_are_opened_says_what_to_do(
    hire, monkeypatch, fitting, advice
):
    really, opened = module.Card._engine, []

    def engine(*given):
        opened.append(given)
        return really(*given) if len(opened) <= fitting else full()

    bench = bench_of()
    executor = hire(bench, 4)
    monkeypatch.setattr(module.Card, "_engine", engine)
    with pytest.raises(FedTinyError, match=advice) as raised:
        [*executor.answers(tasks(bench, train(1)))]
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)
    monkeypatch.undo()
    assert len([*executor.answers(tasks(bench, evaluate()))]) == 5, (
        "it opens if there is room again"
    )
    assert executor.count == 4
