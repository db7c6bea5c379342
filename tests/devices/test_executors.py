"""Worker processes: the same outcome as one process alone, and no process left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from fedtiny import methods
from fedtiny.devices.executors import ForkExecutor, SerialExecutor, can_fork
from fedtiny.devices.simulator import Simulator
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Verb, evaluate, prune_and_grow, top_gradients, train
from fedtiny.federation.method import Method

from .tiny import TinyNet, everything, lab, seeded, settings, tasks, whole_run

pytestmark = pytest.mark.skipif(not can_fork(), reason="workers need fork")


@pytest.fixture
def hire():
    """Put several processes behind a bench's transport, and end them."""
    executors = []

    def hire_(bench, count):
        executors.append(ForkExecutor(bench.engine, bench.spec, bench.shards, count))
        bench.transport.executor = executors[-1]
        return executors[-1]

    yield hire_
    for executor in executors:
        executor.close()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_number_of_workers_changes_no_bit(hire, count):
    config = settings(fleet={"devices": 3, "straggler_rate": 0.2})
    alone, many = (lab(config, model=seeded(TinyNet, 0.3)) for _ in range(2))
    hire(many, count)
    assert whole_run(many) == whole_run(alone)
    assert many.server.theta.version == alone.server.theta.version
    assert many.server.memory == alone.server.memory


def test_the_number_of_workers_changes_no_bit_of_a_cumulative_batch_norm(hire):
    def bench():
        network = seeded(TinyNet)
        network.bn1.momentum = None
        return lab(model=network)

    alone, many = bench(), bench()
    hire(many, 3)
    assert whole_run(many) == whole_run(alone)


def test_replies_come_in_the_order_of_the_jobs(hire):
    bench = lab(sizes=(20, 3, 12, 2, 9))
    executor = hire(bench, 2)
    order = (4, 0, 3, 1, 2)
    replies = list(executor.answers(tasks(bench, train(1), devices=order)))
    assert [reply.device for reply in replies] == list(order)
    assert [reply.samples for reply in replies] == [9, 20, 2, 3, 12]


def test_there_may_be_fewer_jobs_than_workers(hire):
    bench = lab()
    executor = hire(bench, 4)
    assert len(list(executor.answers(tasks(bench, evaluate(), devices=(1,))))) == 1
    assert list(executor.answers([])) == []


@pytest.mark.parametrize("count", [None, 2])
def test_a_failure_is_given_in_its_place_and_the_next_job_works(hire, count):
    bench = lab(sizes=(8, 1, 9))
    executor = hire(bench, count) if count else SerialExecutor(bench.engine, 0)
    for _ in range(2):
        first, second, third = executor.answers(tasks(bench, train(1)))
        assert (first.device, third.device) == (0, 2)
        assert isinstance(second, FedTinyError)
        assert "at least two samples" in str(second)
    outcomes = list(executor.answers(tasks(bench, Verb("somersault"))))
    assert all("cannot 'somersault'" in str(outcome) for outcome in outcomes)


def test_a_worker_follows_as_masks_and_thetas_change(hire):
    bench = lab()
    executor, alone = hire(bench, 2), SerialExecutor(lab().engine, 0)
    one, two = bench.theta(seed=1), bench.theta(seed=2)
    for theta in (one, one, two, one, bench.start):
        work = tasks(bench, train(1), theta=theta)
        versions = [
            [reply.theta.version for reply in each.answers(work)] for each in (executor, alone)
        ]
        assert versions[0] == versions[1]


def test_the_parent_s_model_is_not_touched(hire):
    bench = lab()
    before = bench.engine.theta().version
    executor = hire(bench, 2)
    list(executor.answers(tasks(bench, train(1))))
    assert bench.engine.theta().version == before


def test_a_worker_that_dies_is_reported(hire):
    bench = lab()
    executor = hire(bench, 2)
    os.kill(executor._workers[0].process.pid, signal.SIGKILL)
    executor._workers[0].process.join()
    with pytest.raises(FedTinyError, match="worker process died"):
        list(executor.answers(tasks(bench, train(1))))


class Buggy(Method):
    name = "buggy"
    device_verbs = {"divide": lambda work: 1 / 0}  # noqa: RUF012


def test_a_bug_in_a_third_party_s_verb_is_not_taken_for_want_of_memory(hire, monkeypatch):
    monkeypatch.setattr(methods, "find", {"fedtiny": Buggy}.__getitem__)
    bench = lab()
    executor = hire(bench, 2)
    with pytest.raises(Exception, match="division") as told:
        list(executor.answers(tasks(bench, Verb("divide"))))
    assert "memory" not in str(told.value)


def test_closing_ends_the_processes(hire):
    bench = lab()
    executor = hire(bench, 3)
    processes = [worker.process for worker in executor._workers]
    assert all(process.is_alive() for process in processes)
    Simulator(executor, bench.shards, bench.config).close()
    assert not any(process.is_alive() for process in processes)
    executor.close()  # twice does no harm


# What comes back, in full


def both(hire, sizes):
    """A bench, with two workers and with one process alone that do the same jobs."""
    bench = lab(sizes=sizes)
    return bench, (hire(bench, 2), SerialExecutor(lab(sizes=sizes).engine, 0))


def test_workers_say_all_that_one_alone_says(hire):
    counts = {"conv1.weight": 7, "hidden.weight": 3}
    program = (
        train(1, sum_dense_gradients=True),
        prune_and_grow(counts),
        train(1),
        top_gradients(counts),
    )
    bench, executors = both(hire, (20, 3, 12, 5, 9))
    work = tasks(bench, *program, evaluate(), devices=range(5))
    many, one = (list(map(everything, executor.answers(work))) for executor in executors)
    assert many == one
    assert all(part for part in one[0]), "nothing is left out"


def test_workers_complain_in_the_same_words_as_one_alone(hire):
    bench, executors = both(hire, (8, 1, 9))
    for program in ((train(1),), (Verb("somersault"),), (evaluate(), Verb("handstand"))):
        many, one = (
            [
                str(o)
                for o in executor.answers(tasks(bench, *program))
                if isinstance(o, FedTinyError)
            ]
            for executor in executors
        )
        assert many == one != []


# Processes that end


A_WHILE = train(100_000)  # nobody waits for its end


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_killed_at_its_work_is_told_with_what_to_do(hire, victim):
    bench = lab()
    executor = hire(bench, 2)
    for worker in executor._workers[:victim] + executor._workers[victim + 1 :]:
        worker.start = worker.finish = lambda *_: None  # it has nothing to do
    threading.Timer(0.3, executor._workers[victim].process.kill).start()
    with pytest.raises(FedTinyError, match=r"worker process died.*lower --workers"):
        list(executor.answers(tasks(bench, A_WHILE, devices=(0, 1))))


def test_closing_in_the_middle_of_a_job_leaves_no_process(hire):
    before = set(active_children())
    bench = lab()
    executor = hire(bench, 3)
    started = set(active_children()) - before
    assert len(started) == 3
    next(executor.answers(tasks(bench, train(1))))
    executor.close()
    assert not started & set(active_children())


def test_closing_in_the_middle_of_a_job_prints_no_traceback(hire, capfd):
    bench = lab()
    executor = hire(bench, 2)
    next(executor.answers(tasks(bench, train(1))))
    executor.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_worker_ends_at_once_though_another_crew_was_hired_later(hire):
    first, second = (hire(lab(), 1) for _ in range(2))
    (worker,) = first._workers
    worker.pipe.close()
    worker.process.join(timeout=1)
    ended = not worker.process.is_alive()
    second.close()
    assert ended


PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from fedtiny.devices.executors import ForkExecutor, Task
from fedtiny.federation.messages import Request, train
from tests.devices.tiny import lab
bench = lab()
executor = ForkExecutor(bench.engine, bench.spec, bench.shards, 3)
for worker in executor._workers[:2]:  # two at work, one idle
    worker.start(Task(bench.shards[0], Request("train", "fedtiny", 0, (train(30),), bench.theta())))
print(*(worker.process.pid for worker in executor._workers), flush=True)
sys.stdin.read()
"""


def alive(pid):
    """Whether a process runs; one that has ended but was not fetched does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_workers_end_when_their_parent_is_killed():
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 3
        assert all(map(alive, workers))
        parent.kill()
    deadline = time.monotonic() + 60
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
