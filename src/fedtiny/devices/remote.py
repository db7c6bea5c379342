"""Devices in processes of their own, in any Python environment that has fedtiny without torch."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fedtiny import __version__
from fedtiny.devices.channel import Channel
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.executors import PARENT_ENDS, Task, in_turn
from fedtiny.devices.outfit import Outfit, pack
from fedtiny.devices.worker_connection import WorkerConnection, WorkerDied
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply

CHILD = "fedtiny.devices.remote_child"
LAST_WORDS = 2000  # bytes of what a child said before it died


class SubprocessExecutor:
    """An executor of native devices in child processes, each with the data of its devices only.

    A child gets an outfit and its shards once, and requests in the wire format from then on.
    `python` is the interpreter of the environment that the children live in.
    """

    def __init__(
        self,
        outfit: Outfit,
        shards: Sequence[DeviceData],
        *,
        python: str | Path = sys.executable,
        count: int = 1,
    ) -> None:
        self._children: list[_Child] = []
        self._homes: dict[int, _Child] = {}
        try:
            for _ in range(min(count, len(shards))):
                self._children.append(_Child(outfit, python))
            for number, child in enumerate(self._children):
                self._settle(child, shards[number :: len(self._children)])
            for child in self._children:
                child.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _settle(self, child: "_Child", shards: Sequence[DeviceData]) -> None:
        child.equip(shards)
        self._homes |= {shard.device: child for shard in shards}

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        return in_turn([(self._home(task.shard.device), task) for task in tasks])

    def _home(self, device: int) -> "_Child":
        if device not in self._homes:
            raise FedTinyError(f"no device process has the data of device {device}")
        return self._homes[device]

    def account(self) -> dict[str, Any]:
        return {"simulator": "reference"}

    def close(self) -> None:
        for child in self._children:
            child.close()
        self._children.clear()
        self._homes.clear()


class _Child:
    """The parent's end of one child."""

    def __init__(self, outfit: Outfit, python: str | Path) -> None:
        self.outfit = outfit
        self.python = str(python)
        self.words = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = _started(self.python, self.words)
        assert self.process.stdin
        assert self.process.stdout
        self.pipe = Channel(self.process.stdout, self.process.stdin)
        PARENT_ENDS.add(self.pipe)
        self.connection = WorkerConnection(self.pipe, outfit.param_spec)

    def equip(self, shards: Sequence[DeviceData]) -> None:
        """Give the child all that it needs, once it has said that it speaks our language."""
        try:
            self._check_version()
            self.connection.tell(self.outfit.to_json().encode())
            self.connection.tell(len(shards).to_bytes(8, "little"))
            for shard in shards:
                self.connection.tell(pack(shard))
        except WorkerDied as died:
            raise self._never_ready() from died

    def _check_version(self) -> None:
        theirs = self._outcome().decode()
        if theirs != __version__:
            raise FedTinyError(
                f"{self.python} has fedtiny {theirs}, not {__version__}; install the same there"
            )

    def wait_until_ready(self) -> None:
        """Until the child has made its network of what it got."""
        try:
            self._outcome()
        except WorkerDied as died:
            raise self._never_ready() from died

    def _outcome(self) -> bytes:
        outcome = self.connection.outcome()
        if isinstance(outcome, FedTinyError):
            raise outcome
        return outcome

    def start(self, task: Task) -> None:
        try:
            self.connection.ask(task.shard.device, task.request)
        except WorkerDied as died:
            raise self._died() from died

    def finish(self, task: Task) -> Reply | FedTinyError:
        try:
            return self.connection.reply(task.request)
        except WorkerDied as died:
            raise self._died() from died

    def _never_ready(self) -> FedTinyError:
        return FedTinyError(
            f"{self.python} cannot run a device; is fedtiny installed there?{self._last_words()}"
        )

    def _died(self) -> FedTinyError:
        return FedTinyError(
            f"a device process died, perhaps for want of memory{self._last_words()}"
        )

    def _last_words(self) -> str:
        end = self.words.seek(0, 2)
        self.words.seek(max(0, end - LAST_WORDS))
        said = self.words.read().decode(errors="replace").strip()
        return f"\n{said}" if said else ""

    def close(self) -> None:
        PARENT_ENDS.discard(self.pipe)
        self.pipe.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.words.close()


def _started(python: str, words: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [python, "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
        )
    except OSError as error:
        words.close()
        raise FedTinyError(f"cannot start the Python '{python}': {error.strerror}") from error
