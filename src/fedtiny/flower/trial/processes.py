"""Processes of a trial, each with a log of its own, ended by their ids whatever happens."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtiny.errors import FedTinyError

PATIENCE = 10.0  # seconds that a process may take to end by itself
LAST_WORDS = 1000


@dataclass(frozen=True)
class Started:
    """A process, and those that it has started in turn."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def is_alive(self) -> bool:
        """Whether it is still there."""
        return self.process.poll() is None

    def family(self) -> list[int]:
        """The ids of the process and of all below it, the eldest first."""
        return descendants(self.process.pid) if self.is_alive else []

    def kill(self) -> None:
        """End the process and all below it at once, without a chance to say anything."""
        send(signal.SIGKILL, self.family())
        self.process.wait()

    def last_words(self) -> str:
        """The end of its log."""
        said = self.log.read_text(errors="replace") if self.log.exists() else ""
        return said[-LAST_WORDS:].strip()


class Processes:
    """Everything that a trial has started."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self._logs = logs
        self.environment = dict(environment)
        self._started: list[Started] = []

    def named(self, name: str) -> Started:
        """The one that was started last under this name."""
        return next(started for started in reversed(self._started) if started.name == name)

    def start(self, name: str, program: str, arguments: Sequence[str]) -> Started:
        """Start a program of this Python's environment."""
        log = self._logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [executable(program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self._started.append(Started(name, process, log))
        return self._started[-1]

    def check(self) -> None:
        """Make sure that nothing has died."""
        for started in self._started:
            if not started.is_alive:
                raise FedTinyError(f"{started.name} ended by itself:\n{started.last_words()}")

    def stop(self) -> None:
        """End all, the last started first: politely, then by force with all that they started."""
        families = [started.family() for started in self._started]
        for started in reversed(self._started):
            if started.is_alive:
                started.process.terminate()
        until = time.monotonic() + PATIENCE
        for started in reversed(self._started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(max(0.1, until - time.monotonic()))
        for started, family in zip(self._started, families, strict=True):
            send(signal.SIGKILL, [*family, *started.family()])
            started.process.wait()
        self._started.clear()


def descendants(ancestor: int) -> list[int]:
    """A process and all below it, the eldest first."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
    )
    parents = [tuple(map(int, line.split())) for line in listed.stdout.splitlines()]
    found = [ancestor]
    for known in found:
        found += [child for child, parent in parents if parent == known]
    return found


def send(number: int, processes: Sequence[int]) -> None:
    """Send a signal to those of these that are still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def executable(program: str) -> str:
    """A program of the environment that runs this."""
    beside = Path(sys.executable).parent / program
    found = str(beside) if beside.exists() else shutil.which(program)
    if not found:
        raise FedTinyError(f"{program} is missing; it comes with: pip install 'fedtiny[flower]'")
    return found
