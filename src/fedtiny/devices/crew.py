"""Who does the devices' work: this process, or several of its children."""

import os
import signal
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

from fedtiny.devices.engine import Engine
from fedtiny.devices.node import answer
from fedtiny.devices.shard import Shard
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.wire import (
    NOTHING_KNOWN,
    Known,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from fedtiny.models.anatomy import Anatomy
from fedtiny.sparse.theta import Theta

DONE, FAILED, BROKEN = b"\0", b"\1", b"\2"
_PARENT_ENDS: set[Connection] = set()  # a child that kept one open would outlive its parent


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
        self.anatomy = anatomy
        self._workers: list[_Worker] = []
        for _ in range(count):
            self._workers.append(_Worker(engine, anatomy, shards, seed))

    def answers(self, jobs: Sequence[Job]) -> Iterator[Reply | FedTinyError]:
        """Each worker has one job at a time; at most one reply a worker waits for its turn."""
        waiting = iter(jobs)
        busy = [(worker, job) for worker, job in zip(self._workers, waiting, strict=False)]
        for worker, job in busy:
            worker.start(job)
        while busy:
            worker, job = busy.pop(0)
            outcome = worker.finish(job, self.anatomy)
            following = next(waiting, None)
            if following is not None:
                worker.start(following)
                busy.append((worker, following))
            yield outcome

    def account(self) -> dict[str, Any]:
        return {"simulator": "reference"}

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()


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
        _PARENT_ENDS.add(self.pipe)
        self.known = NOTHING_KNOWN
        self.process = context.Process(
            target=_work, args=(child, engine, anatomy, shards, seed), daemon=True
        )
        with warnings.catch_warnings():  # newer Pythons warn of forks beside idle threads
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        child.close()

    def start(self, job: Job) -> None:
        device = job.shard.device.to_bytes(4, "little")
        try:
            self.pipe.send_bytes(device + encode_request(job.request, self.known))
        except OSError as error:
            raise _died() from error
        self.known = Known(job.request.theta.mask.version, job.request.theta.version)

    def finish(self, job: Job, anatomy: Anatomy) -> Reply | FedTinyError:
        try:
            answered = self.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise _died() from error
        if answered[:1] == BROKEN:
            raise RuntimeError(f"a worker process failed:\n{answered[1:].decode()}")
        if answered[:1] == FAILED:
            return FedTinyError(answered[1:].decode())
        return decode_reply(answered[1:], anatomy, job.request.theta.mask)

    def close(self) -> None:
        _PARENT_ENDS.discard(self.pipe)
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
    """A child's life: do jobs until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for parents_end in _PARENT_ENDS:
        parents_end.close()
    by_device, held = {shard.device: shard for shard in shards}, None
    while True:
        try:
            message = pipe.recv_bytes()
            shard = by_device[int.from_bytes(message[:4], "little")]
            outcome, held = _do(engine, anatomy, shard, message[4:], held, seed)
            pipe.send_bytes(outcome)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _do(
    engine: Engine, anatomy: Anatomy, shard: Shard, data: bytes, held: Theta | None, seed: int
) -> tuple[bytes, Theta]:
    request = decode_request(data, anatomy, held.mask if held else None, held)
    try:
        reply = answer(engine, request, shard, seed)
    except FedTinyError as error:
        return FAILED + str(error).encode(), request.theta
    except Exception:
        return BROKEN + traceback.format_exc().encode(), request.theta
    return DONE + encode_reply(reply, request.theta.mask), request.theta
