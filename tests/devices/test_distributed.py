"""A run over several ranks: the bytes of one process, one writer, one end for all."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest

from fedtiny.cli.main import dispatch
from fedtiny.config import Config
from fedtiny.devices import distributed
from fedtiny.devices.distributed import (
    DistributedExecutor,
    flow_of_first,
    measured_by_first,
    shares,
)
from fedtiny.devices.ranks import ENDED
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Verb, evaluate, top_gradients, train
from fedtiny.process import launch
from fedtiny.runs.resolve import resolved
from fedtiny.sparse.theta import Theta

from ..runs.tiny import FILES_OF_COMMAND, FLAGS, essence
from .tiny import everything, lab, settings, tasks, whole_run

# Who does what


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_every_task_has_one_rank_and_no_rank_has_much_more_than_another(ranks):
    sizes = [5, 1, 9, 9, 2, 7, 3, 3, 4, 8, 6, 1]
    found = shares(sizes, ranks)
    assert sorted(position for share in found for position in share) == list(range(len(sizes)))
    loads = [sum(sizes[position] for position in share) for share in found]
    assert max(loads) - min(loads) <= min(9, max(sizes))
    assert shares(sizes, ranks) == found


def test_ranks_without_a_task_have_an_empty_share():
    assert shares([3], 3) == [[0], [], []]
    assert shares([], 2) == [[], []]


def test_a_process_is_one_of_several_only_if_all_is_said(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert launch().size == 1
    for name, value in {"WORLD_SIZE": 8, "MASTER_ADDR": "here", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert launch()._asdict() == {"rank": 3, "size": 8, "local_rank": 1, "local_size": 2}


def test_ranks_of_one_machine_share_its_cores(monkeypatch):
    config = Config(simulator="reference", threads=1)
    monkeypatch.setattr("fedtiny.runs.resolve.cores", lambda: 8)
    monkeypatch.setattr("fedtiny.runs.resolve.can_fork", lambda: True)
    alone = resolved(config, None, None).workers
    pretend(monkeypatch, rank=0, size=4)
    assert (alone, resolved(config, None, None).workers) == (8, 2)


@pytest.mark.parametrize("command", ["compare", "reproduce", "inspect"])
@pytest.mark.parametrize("rank", [0, 1])
def test_other_commands_are_refused_by_the_first_rank(monkeypatch, capsys, command, rank):
    pretend(monkeypatch, rank=rank, size=2)
    assert dispatch([command]) == 1
    said = capsys.readouterr().err
    assert said.endswith(f"start fedtiny {command} without it\n") if rank == 0 else said == ""


def pretend(monkeypatch, *, rank, size):
    for name, value in variables(rank, size, 1).items():
        monkeypatch.setenv(name, value)


def variables(rank, size, port):
    """What torchrun sets."""
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in (numbers | place).items()}


# The executor, with ranks that are threads


class ThreadRanks:
    """Ranks in one process, for a look at each of them."""

    def __init__(self, rank, board, barrier):
        self.rank, self.size = rank, len(board)
        self.board, self.barrier = board, barrier
        self.exchanges = 0

    def exchange(self, message):
        self.exchanges += 1
        self.board[self.rank] = message
        self.barrier.wait(30)
        found = list(self.board)
        self.barrier.wait(30)
        return found


def on_ranks(count, play, *fleet):
    """What a function returns on each rank, which has a bench of its own."""
    board, barrier = [b""] * count, threading.Barrier(count)
    ranks = [ThreadRanks(rank, board, barrier) for rank in range(count)]
    benches = [lab(*fleet) for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(play, ranks, benches))


@pytest.mark.parametrize("count", [2, 4])
def test_every_rank_has_every_reply_in_order(count):
    program = train(1), top_gradients({"conv2.weight": 5}, 0.1), evaluate()
    alone = lab()
    expected = [
        everything(reply) for reply in alone.transport.executor.answers(tasks(alone, *program))
    ]

    def play(ranks, bench):
        executor = DistributedExecutor(bench.transport.executor, ranks)
        return [everything(reply) for reply in executor.answers(tasks(bench, *program))]

    assert on_ranks(count, play) == [expected] * count


def test_all_ranks_come_to_the_same_server(monkeypatch):
    monkeypatch.setattr(distributed, "WINDOW", 1)
    monkeypatch.setattr(distributed, "HELD", 0)
    config = settings(fleet={"devices": 5, "straggler_rate": 0.2})
    sizes = (12, 9, 21, 5, 8)

    def play(ranks, bench):
        bench.transport.executor = DistributedExecutor(bench.transport.executor, ranks)
        bench.server.public = measured_by_first(bench.server.public, ranks)
        return whole_run(bench), bench.server.theta.version, ranks.exchanges > 9

    alone = lab(config, sizes)
    expected = (whole_run(alone), alone.server.theta.version, True)
    assert on_ranks(2, play, config, sizes) == [expected] * 2


def test_a_model_is_accepted_by_what_rank_0_has_measured():
    def play(ranks, bench):
        public = bench.server.public
        if ranks.rank:  # that measures otherwise
            public.evaluate = lambda theta: {"loss": 9.0, "accuracy": 0.0}
        return measured_by_first(public, ranks).evaluate(bench.start)

    first, second = on_ranks(2, play)
    assert first == second == lab().server.public.evaluate(lab().start)


def test_layer_budgets_by_flow_are_those_of_rank_0():
    def play(ranks, bench):
        own = bench.method.flow
        if ranks.rank:  # that measures otherwise
            own = own.with_counts(lambda counts: counts[::-1])
        adopted = flow_of_first(own, ranks)
        return [flow.counts(0.3, 0.5, 5).tolist() for flow in (own, adopted)]

    (first, adopted), (other, adopted_there) = on_ranks(2, play)
    assert first == adopted == adopted_there != other


def test_the_failure_of_a_device_is_known_to_every_rank():
    def play(ranks, bench):
        own = bench.transport.executor
        ordered = tasks(bench, evaluate())
        unknown = replace(ordered[1].request, program=(Verb("dance"),))
        ordered[1] = replace(ordered[1], request=unknown)
        found = list(DistributedExecutor(own, ranks).answers(ordered))
        return [str(reply) if isinstance(reply, FedTinyError) else reply.device for reply in found]

    (first, second) = on_ranks(2, play)
    assert first == second
    assert (first[0], first[2]) == (0, 2)
    assert "cannot 'dance'" in first[1]


def test_ranks_that_drift_apart_are_stopped():
    def play(ranks, bench):
        ordered = tasks(bench, evaluate())
        if ranks.rank:
            theta = ordered[0].request.theta
            other = replace(ordered[0].request, theta=Theta(theta.mask, theta.vector + 1))
            ordered = [replace(task, request=other) for task in ordered]
        with pytest.raises(FedTinyError, match="rank 1 holds another model than rank 0 in round 1"):
            list(DistributedExecutor(bench.transport.executor, ranks).answers(ordered))
        return True

    assert on_ranks(2, play) == [True, True]


# Whole runs, with ranks that are processes

PLAY = """
import json, os, sys
from fedtiny.cli.main import dispatch
codes = [dispatch(arguments) for arguments in json.loads(sys.argv[1])]
print(json.dumps(codes), file=sys.stderr)
"""
MORTAL = """
import os, signal
from fedtiny.devices.executors import SerialExecutor

alive = SerialExecutor.answers

def answers(self, tasks):
    if tasks and (tasks[0].request.action, tasks[0].request.round) == ("train", 2):
        os.kill(os.getpid(), signal.SIGNAL)
    return alive(self, tasks)

SerialExecutor.answers = answers
"""
DYING, FREEZING = (MORTAL.replace("SIGNAL", name) + PLAY for name in ("SIGKILL", "SIGSTOP"))
IMPATIENT = "from fedtiny.devices import ranks\nranks.LOST, ranks.BEAT = 3.0, 0.5\n" + PLAY
KILLED = -9
SILENT_END = "another rank of this run has ended or cannot be reached"


@dataclass(frozen=True)
class Ended:
    code: int
    codes: list[int]
    out: str
    err: str


def play(folder, *orders, scripts=(PLAY, PLAY)):
    """Some commands one after the other, by ranks that each have a folder of their own.

    An order is a list of arguments, or one for each rank.
    """
    return [ended(child) for child in start(folder, *orders, scripts=scripts)]


def start(folder, *orders, scripts):
    """The ranks' processes."""
    port, children = free_port(), []
    for rank, script in enumerate(scripts):
        place = folder / f"rank{rank}"
        place.mkdir(exist_ok=True)
        own = [order[rank] if isinstance(order, tuple) else order for order in orders]
        children.append(
            subprocess.Popen(
                [sys.executable, "-c", script, json.dumps(own)],
                env={**os.environ, **variables(rank, len(scripts), port)},
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return children


def ended(child):
    out, err = child.communicate(timeout=120)
    *lines, codes = err.splitlines(keepends=True) if child.returncode == 0 else (err, "[]")
    return Ended(child.returncode, json.loads(codes), out, "".join(lines))


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_with(method, *flags):
    return ["run", *FLAGS, "--method", method, *flags, "--out", f"run-{method}{''.join(flags)}"]


def same(one, other):
    """Whether two runs have the same bytes, but for clocks and the number of ranks."""
    ours, theirs = essence(one), essence(other)
    for found in (ours, theirs):
        found["result"].pop("ranks", None)
    return [name for name in ours if ours[name] != theirs[name]]


ORDERS = [
    run_with("fedtiny"),
    run_with("feddst", "--density", "0.2", "--fleet.fail-rate", "0.3"),
    run_with("synflow", "--workers", "2"),
    run_with("fedtiny_flow", *("--selection.pool-size", "3", "--selection.kind", "adaptive_bn")),
    run_with("set", *("--pruning.budgets", "flow", "--flops-budget", "40%")),
    run_with("fedrts"),
    run_with("fedtiny", "--simulator", "gpu", "--gpu.precision", "fp32", "--gpu.lanes", "2"),
]


def one_process(folder, *orders):
    with contextlib.chdir(folder):
        assert [dispatch(order) for order in orders] == [0] * len(orders)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The folder of one process that has carried out the first order."""
    return one_process(tmp_path_factory.mktemp("alone"), ORDERS[0])


@pytest.fixture(scope="module")
def played(alone, tmp_path_factory):
    """The folder of one process, that of two, and what the two said."""
    one_process(alone, *ORDERS[1:])
    together = tmp_path_factory.mktemp("together")
    apart = ([*FLAGS, "--seed", "1"], [*FLAGS, "--seed", "2"])
    refused = tuple(["run", *flags, "--out", "run-apart"] for flags in apart)
    return alone, together, play(together, *ORDERS, refused)


def test_two_processes_come_to_the_bytes_of_one(played):
    alone, together, ranks = played
    assert [rank.codes[: len(ORDERS)] for rank in ranks] == [[0] * len(ORDERS)] * 2
    for order in ORDERS:
        assert same(alone / order[-1], together / "rank0" / order[-1]) == [], order
    result = json.loads((together / "rank0" / ORDERS[0][-1] / "result.json").read_text())
    assert result["ranks"] == 2


def test_one_rank_writes_and_prints(played):
    _, together, (first, second) = played
    assert list((together / "rank1").iterdir()) == []
    assert (second.out, second.err) == ("", "")
    assert first.out.count("round 3/3") == first.out.count("packed model:") == len(ORDERS)
    names = {path.name for path in (together / "rank0" / ORDERS[0][-1]).iterdir()}
    assert names - {".lock"} == FILES_OF_COMMAND


def test_ranks_that_are_not_alike_are_refused_in_one_sentence(played):
    _, together, ranks = played
    assert [rank.codes[-1] for rank in ranks] == [1, 1]
    assert (
        ranks[0].err == "fedtiny: error: rank 1 has another config than rank 0; start all alike\n"
    )
    assert not (together / "rank0" / "run-apart").exists()


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_ends_the_others_and_the_run_resumes(alone, tmp_path, killed):
    order = ORDERS[0]
    scripts = [DYING if rank == killed else PLAY for rank in range(2)]
    found = play(tmp_path, order, scripts=scripts)
    assert found[killed].code == KILLED
    survivor = found[1 - killed]
    assert (survivor.code, survivor.codes) == (0, [1])
    assert survivor.err.startswith(f"fedtiny: error: {SILENT_END}")
    assert survivor.err.count("\n") == 1
    path = tmp_path / "rank0" / order[-1]
    if killed == 1:
        assert f"stopped; continue with: fedtiny resume {order[-1]}" in survivor.out
        assert [rank.codes for rank in play(tmp_path, ["resume", order[-1]])] == [[0]] * 2
        assert list((tmp_path / "rank1").iterdir()) == []
    else:
        assert dispatch(["resume", str(path)]) == 0
    assert same(alone / order[-1], path) == []


@pytest.mark.slow
def test_a_rank_that_hangs_ends_the_others(tmp_path):
    waiting, frozen = start(tmp_path, ORDERS[0], scripts=(IMPATIENT, FREEZING))
    try:
        found = ended(waiting)
    finally:
        frozen.kill()
        frozen.communicate()
    assert (found.code, found.codes) == (0, [1])
    assert found.err.startswith("fedtiny: error: rank 1 has shown no sign of life for 3 seconds;")


WITHOUT_DATA = ["run", *FLAGS, "--data.name", "cifar10", "--data.root", "nowhere"]
FAILURES = {
    "fedtiny: error: there is no nowhere; give the folder of a run": ["resume", "nowhere"],
    "fedtiny: error: rank 1: ": (["run", *FLAGS], WITHOUT_DATA),
}


@pytest.mark.slow
@pytest.mark.parametrize("told", FAILURES)
def test_a_rank_that_fails_says_why(tmp_path, told):
    first, second = play(tmp_path, FAILURES[told])
    assert (first.codes, second.codes) == ([1], [1]), first.err
    heard, gone = "", f"fedtiny: error: {ENDED}"  # the first may be gone before it is heard
    assert second.err == heard or second.err.startswith(gone)
    assert first.err.startswith(told)
    assert [line for line in first.err.splitlines() if line.startswith("fedtiny")][1:] == []


@pytest.mark.slow
def test_torchrun_plays_a_run(alone, tmp_path):
    order = ORDERS[0]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "fedtiny", *order[:-1], str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("round 3/3") == 1
    assert same(alone / order[-1], tmp_path / "run") == []
