"""Who does the devices' work: this process, its forks, or processes of another Python."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Protocol

from fedtiny import __version__
from fedtiny.devices.channel import Channel
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import Engine
from fedtiny.devices.node import answer
from fedtiny.devices.workers import PARENT_ENDS, Worker, ignore_terminal, serve
from fedtiny.devices.workers import Task as Task
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply

CHILD = "fedtiny.devices.workers"
LAST_OUTPUT = 2000  # bytes of what a child printed before it died
PATIENCE = 5  # seconds that a child may take to end


class Executor(Protocol):
    """Does tasks, and returns replies or failures in the order of the tasks."""

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        """What came of each task."""

    def account(self) -> dict[str, Any]:
        """How the tasks were done, as plain JSON: only what may show in a result."""

    def close(self) -> None:
        """No more tasks will come."""


def reply_or_error(engine: Engine, task: Task, seed: int) -> Reply | FedTinyError:
    """What a device answers; an error that a user can understand is an answer too."""
    try:
        return answer(engine, task.request, task.shard, seed)
    except FedTinyError as error:
        return error


class _ReferenceExecutor:
    """Several tasks at once, each in a child process that has one copy of the model.

    Parent and children speak the wire format. The outcome of a task does not depend on who does
    it, and replies come in the order of the tasks, so neither does the outcome of a run.
    """

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def account(self) -> dict[str, Any]:
        return {"simulator": "reference"}

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers.clear()


class SerialExecutor(_ReferenceExecutor):
    """One task after the other, in this process: it has no children."""

    def __init__(self, engine: Engine, seed: int) -> None:
        super().__init__()
        self.engine = engine
        self.seed = seed

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        return (reply_or_error(self.engine, task, self.seed) for task in tasks)


def _in_turn(work: Sequence[tuple[Worker, Task]]) -> Iterator[Reply | FedTinyError]:
    """The outcomes in the order of the tasks; all workers start, whoever is waited for first."""
    waiting: dict[Worker, deque[Task]] = {}
    for worker, task in work:
        waiting.setdefault(worker, deque()).append(task)
    for worker, own in waiting.items():
        worker.start(own.popleft())

    def outcomes() -> Iterator[Reply | FedTinyError]:
        """At most one a worker waits for its turn."""
        for worker, task in work:
            outcome = worker.finish(task)
            if waiting[worker]:
                worker.start(waiting[worker].popleft())
            yield outcome

    return outcomes()


def can_fork() -> bool:
    """Whether this system can give work to children that share the parent's data."""
    return hasattr(os, "fork") and os.uname().sysname == "Linux"


class ForkExecutor(_ReferenceExecutor):
    """Children that were forked, so that each has the data of every device."""

    def __init__(
        self, engine: Engine, spec: DeviceSpec, shards: Sequence[DeviceData], count: int
    ) -> None:
        super().__init__()
        for _ in range(max(1, min(count, len(shards)))):
            self._workers.append(_ForkWorker(engine, spec, shards))

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        return _in_turn(list(zip(cycle(self._workers), tasks, strict=False)))


class _ForkWorker(Worker):
    def __init__(self, engine: Engine, spec: DeviceSpec, shards: Sequence[DeviceData]) -> None:
        context = get_context("fork")
        pipe, child = context.Pipe()
        super().__init__(pipe)
        arguments = (child, engine, spec, shards)
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():  # newer Pythons warn of forks beside idle threads
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        child.close()

    def close(self) -> None:
        super().close()
        self.process.join(timeout=PATIENCE)
        if self.process.is_alive():
            self.process.kill()


def _work(pipe: Connection, engine: Engine, spec: DeviceSpec, shards: Sequence[DeviceData]) -> None:
    """A child's life, apart from its parent's."""
    ignore_terminal()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for parents_end in PARENT_ENDS:
        parents_end.close()
    serve(pipe, engine, spec, shards)


class SubprocessExecutor(_ReferenceExecutor):
    """Native devices in processes of any Python that has fedtiny, perhaps without torch.

    A child gets the spec and the data of its own devices once, and requests in the wire format
    from then on. `python` is the interpreter of the children's environment.
    """

    def __init__(
        self,
        spec: DeviceSpec,
        shards: Sequence[DeviceData],
        *,
        python: str | Path = sys.executable,
        count: int = 1,
    ) -> None:
        super().__init__()
        self._homes: dict[int, Worker] = {}
        try:
            children: list[_Subprocess] = []
            for _ in range(min(count, len(shards))):
                children.append(_Subprocess(python))
                self._workers.append(children[-1])
            for number, child in enumerate(children):
                own = shards[number :: len(children)]
                child.equip(spec, own)
                self._homes |= {shard.device: child for shard in own}
            for child in children:
                child.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        strangers = {task.shard.device for task in tasks} - self._homes.keys()
        if strangers:
            raise FedTinyError(f"no device process has the data of device {min(strangers)}")
        return _in_turn([(self._homes[task.shard.device], task) for task in tasks])


class _Subprocess(Worker):
    def __init__(self, python: str | Path) -> None:
        self.python = str(python)
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = _started(self.python, self.printed)
        self.ready = False
        assert self.process.stdin
        assert self.process.stdout
        super().__init__(Channel(self.process.stdout, self.process.stdin))

    def equip(self, spec: DeviceSpec, shards: Sequence[DeviceData]) -> None:
        """Give the child all that it needs, once it has said that it speaks our language."""
        theirs = self._done().decode()
        if theirs != __version__:
            raise FedTinyError(
                f"{self.python} has fedtiny {theirs}, not {__version__}; install the same there"
            )
        self.tell(json.dumps(spec.to_plain()).encode())
        self.tell(len(shards).to_bytes(8, "little"))
        for shard in shards:
            self.tell(shard.to_bytes())

    def wait_until_ready(self) -> None:
        """Until the child has made its network of what it got."""
        self._done()
        self.ready = True

    def _done(self) -> bytes:
        outcome = self.outcome()
        if isinstance(outcome, FedTinyError):
            raise outcome
        return outcome

    def died(self, error: Exception) -> FedTinyError:
        end = self.printed.seek(0, 2)
        self.printed.seek(max(0, end - LAST_OUTPUT))
        last = self.printed.read().decode(errors="replace").strip()
        what = (
            "a device process died, perhaps for want of memory"
            if self.ready
            else f"{self.python} cannot run a device; is fedtiny installed there?"
        )
        return FedTinyError(f"{what}\n{last}" if last else what)

    def close(self) -> None:
        super().close()
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.printed.close()


def _started(python: str, printed: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [python, "-m", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed
        )
    except OSError as error:
        printed.close()
        raise FedTinyError(f"cannot start the Python '{python}': {error.strerror}") from error
