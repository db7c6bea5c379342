"""Trackers: a run's figures round by round, sent where their reader looks.

Each tracker imports its package when it is made.
"""

import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from fedtiny import config as configs
from fedtiny.errors import ConfigError, RunError, did_you_mean
from fedtiny.extras import require
from fedtiny.files import make_closed_folder, write_json
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.folder import RunFolder, quoted
from fedtiny.runs.metrics import Record
from fedtiny.runs.reading import TRACKED, plain
from fedtiny.runs.reporter import Reporter, automatic
from fedtiny.runs.tracking.mlflow import MLflow

STATE = "trackers.json"


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
        require("tensorboard", extra="tensorboard")  # which PyTorch's writer does not name
        self.writing = require("torch.utils.tensorboard", extra="tensorboard")
        self.writer: Any = None

    def open(self, subject: Subject) -> None:
        place = subject.folder / "tensorboard"
        make_closed_folder(place)
        self.writer = self.writing.SummaryWriter(str(place), purge_step=subject.rounds + 1)

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
        make_closed_folder(subject.folder / "wandb")
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


TRACKERS: dict[str, tuple[Callable[[], Tracker], str]] = {
    "mlflow": (
        MLflow,
        "mlflow ui --backend-store-uri {run}/mlruns (or MLFLOW_TRACKING_URI)",
    ),
    "tensorboard": (TensorBoard, "tensorboard --logdir {run}"),
    "trackio": (Trackio, "trackio show --project fedtiny"),
    "wandb": (WeightsAndBiases, "wandb sync {run}/wandb/offline-* (if it was)"),
}
"""The trackers that fedtiny brings, each with the command that shows what it holds."""


def reporting(names: Iterable[str]) -> Reporter:
    """The reporter that fits where the output goes, which also tells these trackers."""
    trackers = create(names)
    shown = automatic()
    return Tracked(shown, trackers) if trackers else shown


def create(names: Iterable[str]) -> dict[str, Tracker]:
    """The trackers of these names; a missing package says at once which extra brings it."""
    trackers: dict[str, Tracker] = {}
    for name in dict.fromkeys(names):
        if name not in TRACKERS:
            hint = did_you_mean(name, TRACKERS)
            raise ConfigError(f"no tracker '{name}' (known: {', '.join(TRACKERS)}){hint}")
        kind, _ = TRACKERS[name]
        trackers[name] = kind()
    return trackers


def seen_with(name: str, run: Path) -> str:
    """The command that shows what a tracker holds of a run."""
    _, command = TRACKERS[name]
    return command.format(run=quoted(run))


class Tracked:
    """Passes everything on to a reporter, and each round's figures to trackers.

    Which rounds a tracker has is kept in the run folder, so that a resumed run sends none twice
    and none too few. A tracker that fails is left out from then on; the run never notices.
    """

    def __init__(self, reporter: Reporter, trackers: Mapping[str, Tracker]) -> None:
        self.reporter = reporter
        self.trackers = dict(trackers)
        self.state: dict[str, Any] = {}
        self.path: Path | None = None
        self.summary: dict[str, float] = {}

    def started(self, assembly: Assembly, folder: RunFolder, records: list[Record]) -> None:
        self.reporter.started(assembly, folder, records)
        self.path = folder.path / STATE
        self.state = _state(self.path, self.trackers)
        settings = configs.to_dict(assembly.asked)
        for name, tracker in list(self.trackers.items()):
            own = self.state[name]
            run = folder.path.resolve()
            subject = Subject(run.name, own["key"], run, settings, own["rounds"])
            self._try(name, tracker.open, subject)
        for record in records:
            self._log(record)

    def selected(self, selection: dict[str, Any]) -> None:
        self.reporter.selected(selection)

    def round_done(self, record: Record) -> None:
        self.reporter.round_done(record)
        self._log(record)

    def finished(self, result: dict[str, Any]) -> None:
        self.summary = figures(result)
        self.reporter.finished(result)

    def close(self) -> None:
        for name, tracker in list(self.trackers.items()):
            self._try(name, tracker.close, self.summary)
        self.reporter.close()

    def _log(self, record: Record) -> None:
        """Tell the trackers that do not have this round yet."""
        step, news = record["round_number"], False
        for name, tracker in list(self.trackers.items()):
            new = step > self.state[name]["rounds"]
            if new and self._try(name, tracker.log, step, figures(record)):
                self.state[name]["rounds"], news = step, True
        if news and self.path:
            write_json(self.path, self.state)

    def _try(self, name: str, call: Callable[..., None], *arguments: Any) -> bool:
        try:
            call(*arguments)
        except Exception as error:
            del self.trackers[name]
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            print(f"fedtiny: tracker '{name}' failed and is left out ({what})", file=sys.stderr)
            return False
        return True


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Every finite number of a record, with the density of each layer.

    >>> figures({"round_number": 4, "accuracy": 0.5, "loss": None, "densities": {"a.weight": 0.1}})
    {'accuracy': 0.5, 'layer_density/a.weight': 0.1}
    """
    layers = record.get("densities") or {}
    flat = {**record, **{f"layer_density/{layer}": value for layer, value in layers.items()}}
    return {
        name: value
        for name, value in flat.items()
        if name != "round_number"
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and isfinite(value)
    }


def _state(path: Path, names: Mapping[str, Tracker]) -> dict[str, Any]:
    """What each tracker has of this run, from before; one that is new has nothing."""
    try:
        known = plain(path, TRACKED)
    except RunError:
        known = {}
    fresh = {name: {"key": uuid.uuid4().hex[:12], "rounds": 0} for name in names}
    return {**fresh, **known}
