"""Trackers by name."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fedtiny.errors import ConfigError
from fedtiny.extras import require
from fedtiny.runs import display
from fedtiny.runs.folder import quoted
from fedtiny.runs.reporter import Reporter
from fedtiny.runs.tracking.tracked import Tracked
from fedtiny.runs.tracking.tracker import Tracker
from fedtiny.suggest import did_you_mean


class Known(NamedTuple):
    """A tracker that fedtiny brings: its class, and the command that shows what it holds."""

    module: str
    kind: str
    seen_with: str


TRACKERS = {
    "tensorboard": Known(
        "fedtiny.runs.tracking.tensorboard", "TensorBoard", "tensorboard --logdir {run}"
    ),
    "trackio": Known("fedtiny.runs.tracking.trackio", "Trackio", "trackio show --project fedtiny"),
    "wandb": Known(
        "fedtiny.runs.tracking.wandb",
        "WeightsAndBiases",
        "wandb sync {run}/wandb/offline-* (if it was)",
    ),
}


def reporting(names: Iterable[str]) -> Reporter:
    """The reporter that fits where the output goes, which also tells these trackers."""
    trackers = create(names)
    shown = display.automatic()
    return Tracked(shown, trackers) if trackers else shown


def create(names: Iterable[str]) -> dict[str, Tracker]:
    """The trackers of these names; a missing package says at once which extra brings it."""
    return {name: _create(name) for name in dict.fromkeys(names)}


def _create(name: str) -> Tracker:
    if name not in TRACKERS:
        hint = did_you_mean(name, TRACKERS)
        raise ConfigError(f"no tracker '{name}' (known: {', '.join(TRACKERS)}){hint}")
    require(name, extra=name)
    module, kind, _ = TRACKERS[name]
    tracker: Tracker = getattr(require(module, extra=name), kind)()
    return tracker


def seen_with(name: str, run: Path) -> str:
    """The command that shows what a tracker holds of a run."""
    return TRACKERS[name].seen_with.format(run=quoted(run))
