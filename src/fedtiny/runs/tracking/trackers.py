"""What a tracker is, and those that fedtiny knows; each imports its package when it is made."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fedtiny.extras import require


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


class TensorBoard:
    """Event files in the run folder; a resumed run adds one that takes over from the last."""

    def __init__(self) -> None:
        self.writing = require("torch.utils.tensorboard", extra="tensorboard")
        self.writer: Any = None

    def open(self, subject: Subject) -> None:
        place = str(subject.folder / "tensorboard")
        self.writer = self.writing.SummaryWriter(place, purge_step=subject.rounds + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self, summary: Mapping[str, float]) -> None:
        if self.writer is not None:
            self.writer.close()


class Trackio:
    """A local data base, in the project `fedtiny`; a resumed run goes on under its own name."""

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


class WeightsAndBiases:
    """Figures by round in WANDB_PROJECT, or `fedtiny`; a resumed run goes on under the same id."""

    def __init__(self) -> None:
        self.wandb = require("wandb", extra="wandb")
        self.run: Any = None

    def open(self, subject: Subject) -> None:
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedtiny"),
            name=subject.name,
            id=subject.key,
            dir=str(subject.folder),
            config=dict(subject.settings),
            resume="allow",
            settings=self.wandb.Settings(console="off", silent=True),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def close(self, summary: Mapping[str, float]) -> None:
        if self.run is not None:
            self.run.summary.update(dict(summary))
            self.run.finish()


class Known(NamedTuple):
    """A tracker that fedtiny brings, and the command that shows what it holds."""

    kind: Callable[[], Tracker]
    seen_with: str


TRACKERS = {
    "tensorboard": Known(TensorBoard, "tensorboard --logdir {run}"),
    "trackio": Known(Trackio, "trackio show --project fedtiny"),
    "wandb": Known(WeightsAndBiases, "wandb sync {run}/wandb/offline-* (if it was)"),
}
