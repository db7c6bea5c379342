"""What a tracker is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Subject:
    """The run that is tracked.

    `key` is the same whenever the run goes on; `rounds` is how many of its rounds the tracker has.
    """

    name: str
    key: str
    folder: Path
    settings: Mapping[str, Any]
    rounds: int


class Tracker(Protocol):
    """Writes figures down somewhere; may fail, which the run survives."""

    def open(self, subject: Subject) -> None:
        """A run begins or goes on."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """The figures of a round; the first is step 1."""

    def close(self, summary: Mapping[str, float]) -> None:
        """The run is over; the summary is empty where it was stopped."""
