"""What a run tells whoever watches it."""

from typing import Any, Protocol

from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import Record


class Reporter(Protocol):
    """Hears of each step of a run; one small class for each way of showing it."""

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        """A run begins, or goes on after these rounds."""

    def selected(self, selection: dict[str, Any]) -> None:
        """A candidate was chosen as the first sparse model."""

    def round_done(self, record: Record) -> None:
        """A round is over."""

    def finished(self, result: dict[str, Any]) -> None:
        """The run is over."""

    def close(self) -> None:
        """Nothing more will come, for whatever reason."""


class Silent:
    """Says nothing."""

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        pass

    def selected(self, selection: dict[str, Any]) -> None:
        pass

    def round_done(self, record: Record) -> None:
        pass

    def finished(self, result: dict[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass
