"""Runs in slices: a clock that stops them where nothing is lost."""

import time
from typing import Any

from fedtiny.reproduce import machine
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import Record
from fedtiny.runs.reporter import Reporter


class OutOfTimeError(Exception):
    """The slice is over; what was begun goes on from its checkpoint another time."""


class Clock:
    """So many minutes from now, or for ever."""

    def __init__(self, minutes: float | None) -> None:
        self.end = None if minutes is None else time.monotonic() + 60 * minutes

    def check(self) -> None:
        """Raise where the time is over."""
        if self.end is not None and time.monotonic() >= self.end:
            raise OutOfTimeError


class Sliced:
    """Passes all on to another reporter, and stops a run at a checkpoint once time is over.

    However short a slice is, it brings a run on by a checkpoint. The machine that works on a run is
    noted in its folder.
    """

    def __init__(self, inner: Reporter, clock: Clock, command: str) -> None:
        self.inner = inner
        self.clock = clock
        self.command = command
        self.rounds = 0
        self.checkpoint_every = 1
        self.selecting = False

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        self.rounds = assembly.config.rounds or 0
        self.checkpoint_every = assembly.config.checkpoint_every
        self.selecting = not assembly.server.coarse_pruned
        machine.note(folder, machine.here(self.command))
        self.inner.started(assembly, folder, records)

    def selected(self, selection: dict[str, Any]) -> None:
        self.inner.selected(selection)
        if self.selecting:
            self.clock.check()

    def round_done(self, record: Record) -> None:
        self.inner.round_done(record)
        done = record["round"] + 1
        if done % self.checkpoint_every == 0 and done < self.rounds:
            self.clock.check()

    def finished(self, result: dict[str, Any]) -> None:
        self.inner.finished(result)

    def close(self) -> None:
        self.inner.close()
