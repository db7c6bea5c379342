"""Trackio: a local data base, shown with `trackio show --project fedtiny`."""

from collections.abc import Mapping
from typing import Any

from fedtiny.extras import require
from fedtiny.runs.tracking.tracker import Subject


class Trackio:
    """Figures by round in the project `fedtiny`; a resumed run goes on under its own name."""

    def __init__(self) -> None:
        self.trackio = require("trackio", extra="trackio")
        self.run: Any = None

    def open(self, subject: Subject) -> None:
        self.run = self.trackio.init(
            project="fedtiny",
            name=f"{subject.name}-{subject.key}",
            config=dict(subject.settings),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.trackio.log(dict(values), step=step)

    def close(self, summary: Mapping[str, float]) -> None:
        if self.run is not None:
            self.trackio.finish()
