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

from fedtiny.devices.dialogue import Dialogue, Hangup, Pipe, serve
from fedtiny.devices.engine import Engine
from fedtiny.devices.node import answer
from fedtiny.devices.shard import Shard
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply, Request
from fedtiny.models.anatomy import Anatomy

PARENT_ENDS: set[Pipe] = set()  # a child that kept one open would outlive its parent


@dataclass(frozen=True)
class Job:
    """A request to one device."""

    shard: Shard
    request: Request


class Crew(Protocol):
    """Does jobs, and gives replies or failures in the order of the jobs."""

    def answers(self, jobs: Sequence[Job]) -> Iterator[Reply | FedTinyError]:
        """What came of each job."""

    def account(self) -> dict[str, Any]:
        """How the jobs were done, as plain JSON: only what may show in a result."""

    def close(self) -> None:
        """No more jobs will come."""


def reply_or_error(engine: Engine, job: Job, seed: int) -> Reply | FedTinyError:
    """What a device answers; an error that a user can understand is an answer too."""
    try:
        return answer(engine, job.request, job.shard, seed)
    except FedTinyError as error:
        return error


class Alone:
    """One job after the other, in this process."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.seed = seed

    def answers(self, jobs: Sequence[Job]) -> Iterator[Reply | FedTinyError]:
        return (reply_or_error(self.engine, job, self.seed) for job in jobs)

    def account(self) -> dict[str, Any]:
        return {"simulator": "reference"}

    def close(self) -> None:
        pass


def can_fork() -> bool:
    """Whether this system can give work to children that share the parent's data."""
    return hasattr(os, "fork") and os.uname().sysname == "Linux"


class Workers:
    """Several jobs at once, each in a child process with one copy of the model.

    Parent and children speak the wire format. A job's outcome does not depend on who does it, and
    replies are given in the order of the jobs, so neither does the outcome of a run.
    """

    def __init__(
        self, engine: Engine, anatomy: Anatomy, shards: Sequence[Shard], seed: int, count: int
    ) -> None:
        self._workers: list[_Worker] = []
        for _ in range(count):
            self._workers.append(_Worker(engine, anatomy, shards, seed))

    def answers(self, jobs: Sequence[Job]) -> Iterator[Reply | FedTinyError]:
        return in_turn(list(zip(cycle(self._workers), jobs, strict=False)))

    def account(self) -> dict[str, Any]:
        return {"simulator": "reference"}

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()


class Hand(Protocol):
    """One who does a job at a time."""

    def start(self, job: Job) -> None:
        """Begin a job."""

    def finish(self, job: Job) -> Reply | FedTinyError:
        """What came of the job that was begun."""


def in_turn(work: Sequence[tuple[Hand, Job]]) -> Iterator[Reply | FedTinyError]:
    """The outcomes in the order of the jobs; at most one a hand waits for its turn."""
    waiting: dict[Hand, deque[Job]] = {}
    for hand, job in work:
        waiting.setdefault(hand, deque()).append(job)
    for hand, own in waiting.items():
        hand.start(own.popleft())
    for hand, job in work:
        outcome = hand.finish(job)
        if waiting[hand]:
            hand.start(waiting[hand].popleft())
        yield outcome


class _Worker:
    """The parent's end of one child."""

    def __init__(
        self,
        engine: Engine,
        anatomy: Anatomy,
        shards: Sequence[Shard],
        seed: int,
    ) -> None:
        context = get_context("fork")
        self.pipe, child = context.Pipe()
        PARENT_ENDS.add(self.pipe)
        self.dialogue = Dialogue(self.pipe, anatomy)
        self.process = context.Process(
            target=_work, args=(child, engine, anatomy, shards, seed), daemon=True
        )
        with warnings.catch_warnings():  # newer Pythons warn of forks beside idle threads
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        child.close()

    def start(self, job: Job) -> None:
        try:
            self.dialogue.ask(job.shard.device, job.request)
        except Hangup as hangup:
            raise _died() from hangup

    def finish(self, job: Job) -> Reply | FedTinyError:
        try:
            return self.dialogue.reply(job.request)
        except Hangup as hangup:
            raise _died() from hangup

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
    anatomy: Anatomy,
    shards: Sequence[Shard],
    seed: int,
) -> None:
    """A child's life, apart from its parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for parents_end in PARENT_ENDS:
        parents_end.close()
    serve(pipe, engine, anatomy, shards, seed)
