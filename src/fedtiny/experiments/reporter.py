"""What watches a run among many: it shows a line, and stops the run once time is over."""

import time
from typing import Any

from rich.console import Console

from fedtiny.experiments.finished import note_machine, this_machine
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import Record
from fedtiny.runs.reporter import Silent


class OutOfTimeError(Exception):
    """The slice is over; what was begun goes on from its checkpoint another time."""


class Clock:
    """So many minutes from now, or for ever."""

    def __init__(self, minutes: float | None = None) -> None:
        self.end = None if minutes is None else time.monotonic() + 60 * minutes

    def check(self) -> None:
        """Raise if the time is over."""
        if self.end is not None and time.monotonic() >= self.end:
            raise OutOfTimeError


class CellReporter(Silent):
    """Shows a run in one line, with its round while it goes, and stops it at a checkpoint.

    However short a slice is, it brings a run on by a checkpoint. If the command is given, the
    machine that works on a run is noted in its folder.
    """

    def __init__(
        self, console: Console, title: str, clock: Clock, command: str | None = None
    ) -> None:
        self.console = console
        self.title = title
        self.clock = clock
        self.command = command
        self.rounds = 0
        self.checkpoint_every = 1
        self.selecting = False
        self.status = console.status(title) if console.is_terminal else None

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        self.rounds = assembly.config.rounds
        self.checkpoint_every = assembly.config.checkpoint_every
        self.selecting = not assembly.server.coarse_pruned
        if self.command:
            note_machine(folder, this_machine(self.command))
        if records:
            self._say(f"goes on after round {len(records)} of {self.rounds}")
        if self.status:
            self.status.start()

    def selected(self, selection: dict[str, Any]) -> None:
        if self.selecting:
            self.clock.check()

    def round_done(self, record: Record) -> None:
        done = record["round"] + 1
        if self.status:
            self.status.update(f"{self.title}: round {done}/{self.rounds}")
        if done % self.checkpoint_every == 0 and done < self.rounds:
            self.clock.check()

    def finished(self, result: dict[str, Any]) -> None:
        self._say(
            f"accuracy {result['accuracy']:.4f} at density {result['density']:.4f}, "
            f"{result['seconds']:.0f} s"
        )

    def close(self) -> None:
        if self.status:
            self.status.stop()

    def _say(self, what: str) -> None:
        self.console.print(f"{self.title}: {what}", markup=False)
