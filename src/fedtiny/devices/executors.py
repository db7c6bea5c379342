"""Who does the devices' work: this process, or several of its children."""

import os
import signal
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Engine
from fedtiny.devices.node import answer
from fedtiny.devices.worker_connection import Pipe, WorkerConnection, WorkerDied, serve
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply, Request
from fedtiny.models.param_spec import ParamSpec

PARENT_ENDS: set[Pipe] = set()  # a child that kept one open would outlive its parent


@dataclass(frozen=True)
class Task:
    """A request to one device."""

    shard: DeviceData
    request: Request


class Executor(Protocol):
    """Does jobs, and gives replies or failures in the order of the jobs."""

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        """What came of each job."""

    def account(self) -> dict[str, Any]:
        """How the jobs were done, as plain JSON: only what may show in a result."""

    def close(self) -> None:
        """No more jobs will come."""


def reply_or_error(engine: Engine, task: Task, seed: int) -> Reply | FedTinyError:
    """What a device answers; an error that a user can understand is an answer too."""
    try:
        return answer(engine, task.request, task.shard, seed)
    except FedTinyError as error:
        return error


class SerialExecutor:
    """One job after the other, in this process."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.seed = seed

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        return (reply_or_error(self.engine, task, self.seed) for task in tasks)

    def account(self) -> dict[str, Any]:
        return {"simulator": "reference"}

    def close(self) -> None:
        pass


def can_fork() -> bool:
    """Whether this system can give work to children that share the parent's data."""
    return hasattr(os, "fork") and os.uname().sysname == "Linux"


class ForkExecutor:
    """Several jobs at once, each in a child process with one copy of the model.

    Parent and children speak the wire format. A job's outcome does not depend on who does it, and
    replies are given in the order of the jobs, so neither does the outcome of a run.
    """

    def __init__(
        self,
        engine: Engine,
        param_spec: ParamSpec,
        shards: Sequence[DeviceData],
        seed: int,
        count: int,
    ) -> None:
        self._workers: list[_ForkWorker] = []
        for _ in range(count):
            self._workers.append(_ForkWorker(engine, param_spec, shards, seed))

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        return in_turn(list(zip(cycle(self._workers), tasks, strict=False)))

    def account(self) -> dict[str, Any]:
        return {"simulator": "reference"}

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()


class Worker(Protocol):
    """One who does a job at a time."""

    def start(self, task: Task) -> None:
        """Begin a job."""

    def finish(self, task: Task) -> Reply | FedTinyError:
        """What came of the job that was begun."""


def in_turn(work: Sequence[tuple[Worker, Task]]) -> Iterator[Reply | FedTinyError]:
    """The outcomes in the order of the jobs; at most one a hand waits for its turn."""
    waiting: dict[Worker, deque[Task]] = {}
    for worker, task in work:
        waiting.setdefault(worker, deque()).append(task)
    for worker, own in waiting.items():
        worker.start(own.popleft())
    for worker, task in work:
        outcome = worker.finish(task)
        if waiting[worker]:
            worker.start(waiting[worker].popleft())
        yield outcome


class _ForkWorker:
    """The parent's end of one child."""

    def __init__(
        self,
        engine: Engine,
        param_spec: ParamSpec,
        shards: Sequence[DeviceData],
        seed: int,
    ) -> None:
        context = get_context("fork")
        self.pipe, child = context.Pipe()
        PARENT_ENDS.add(self.pipe)
        self.connection = WorkerConnection(self.pipe, param_spec)
        self.process = context.Process(
            target=_work, args=(child, engine, param_spec, shards, seed), daemon=True
        )
        with warnings.catch_warnings():  # newer Pythons warn of forks beside idle threads
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        child.close()

    def start(self, task: Task) -> None:
        try:
            self.connection.ask(task.shard.device, task.request)
        except WorkerDied as died:
            raise _died() from died

    def finish(self, task: Task) -> Reply | FedTinyError:
        try:
            return self.connection.reply(task.request)
        except WorkerDied as died:
            raise _died() from died

    def close(self) -> None:
        PARENT_ENDS.discard(self.pipe)
        self.pipe.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()


def _died() -> FedTinyError:
    return FedTinyError("a worker process died, perhaps for want of memory; lower --workers")


def _work(
    pipe: Connection,
    engine: Engine,
    param_spec: ParamSpec,
    shards: Sequence[DeviceData],
    seed: int,
) -> None:
    """A child's life, apart from its parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for parents_end in PARENT_ENDS:
        parents_end.close()
    serve(pipe, engine, param_spec, shards, seed)
