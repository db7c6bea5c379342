"""A run among many, shown in one line."""

from typing import Any

from rich.console import Console

from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import Record


class OneLine:
    """Shows a run of a comparison in one line, with its round while it goes."""

    def __init__(self, console: Console, name: str) -> None:
        self.console = console
        self.name = name
        self.rounds = 0
        self.status = console.status(name) if console.is_terminal else None

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        self.rounds = assembly.config.rounds or 0
        if records:
            self._say(f"goes on after round {len(records)} of {self.rounds}")
        if self.status:
            self.status.start()

    def selected(self, selection: dict[str, Any]) -> None:
        pass

    def round_done(self, record: Record) -> None:
        if self.status:
            self.status.update(f"{self.name}: round {record['round'] + 1}/{self.rounds}")

    def finished(self, result: dict[str, Any]) -> None:
        self._say(
            f"accuracy {result['accuracy']:.4f} at density {result['density']:.4f}, "
            f"{result['seconds']:.0f} s"
        )

    def close(self) -> None:
        if self.status:
            self.status.stop()

    def _say(self, what: str) -> None:
        self.console.print(f"{self.name}: {what}", markup=False)
