"""A run in a notebook: one line below the cell, which is updated after each round."""

import importlib
import sys
import time
from html import escape
from typing import Any

from fedtiny.errors import can_retry, named
from fedtiny.runs import formatting
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder, way_on
from fedtiny.runs.metrics import Record


def display(shown: object, **options: Any) -> Any:
    """Show something below the cell; what is shown with a `display_id` can be updated."""
    return importlib.import_module("IPython.display").display(shown, **options)


class Line:
    """What is shown: a bar, and words."""

    def __init__(self, text: str, done: int, rounds: int) -> None:
        self.text, self.done, self.rounds = text, done, rounds

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        bar = f'<progress value="{self.done}" max="{self.rounds}"></progress>'
        return f"<div>{bar} <code>{escape(self.text)}</code></div>"


class NotebookReporter:
    """Shows how far a run is in one line."""

    def __init__(self) -> None:
        self.rounds = self.done = 0
        self.unfinished: RunFolder | None = None
        self.began = 0.0
        self.first = 0
        self.place: Any = None

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        self.rounds, self.unfinished = assembly.config.rounds, folder
        self.done = self.first = len(records)
        headline = formatting.headline(
            assembly.config, assembly.split.table, assembly.server.param_spec, assembly.backend
        )
        for line in (headline, *assembly.notes, *formatting.unused_settings(assembly.config)):
            print(named(line))
        self.began = time.monotonic()
        self._show("choosing the first mask" if not records else "going on")

    def selected(self, selection: dict[str, Any]) -> None:
        if self.done < self.rounds:
            self.began = time.monotonic()
            self._show("training")

    def round_done(self, record: Record) -> None:
        self.done += 1
        accuracy = record["accuracy"]
        shown = "" if accuracy is None else f"accuracy {accuracy:.4f}, "
        self._show(f"{shown}density {record['density']:.4f}, {self._time_left()}")

    def finished(self, result: dict[str, Any]) -> None:
        self._show(
            f"done: accuracy {result['accuracy']:.4f} at density {result['density']:.4f}, "
            f"{result['kept_weights']:,} of {result['prunable_weights']:,} prunable weights kept"
        )
        self.unfinished = None

    def close(self) -> None:
        if self.unfinished and can_retry(sys.exception()):
            self._show(named(f"stopped; continue with: {way_on(self.unfinished)}"))

    def _time_left(self) -> str:
        """About how long the rounds that are left take, by those that were done here."""
        each = (time.monotonic() - self.began) / max(1, self.done - self.first)
        return f"about {each * (self.rounds - self.done):.0f} s left"

    def _show(self, text: str) -> None:
        line = Line(f"round {self.done}/{self.rounds}: {text}", self.done, self.rounds)
        if self.place is None:
            self.place = display(line, display_id=True)
        else:
            self.place.update(line)
