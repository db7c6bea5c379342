"""Who keeps what a run does: rank 0 writes the run folder, its other ranks keep nothing."""

import platform
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.devices.distributed import of_first, packed, unpacked
from fedtiny.devices.ranks import Ranks
from fedtiny.errors import RunError
from fedtiny.extras import own_code, require, version_of
from fedtiny.files import read_json, write_atomically, write_json
from fedtiny.runs import metrics
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.best import best_model
from fedtiny.runs.checkpoint import Checkpoint, read_checkpoint, require_complete, save_checkpoint
from fedtiny.runs.fleet import Fleet
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import Record, about_record
from fedtiny.runs.split import Split, load_split, save_split
from fedtiny.runs.weights import Weights
from fedtiny.sparse.theta import Theta, is_usable

BEGINS_AGAIN = (
    "the model of the checkpoint has values too large to compute with, so the run begins again"
)
PACKAGES = ("fedtiny", "torch", "numpy", "safetensors", "flwr")


class Recorder(Protocol):
    """Keeps each step of a run."""

    folder: RunFolder

    def described(self, assembly: Assembly, fleet: Fleet | None) -> None:
        """What the run is, before it does anything."""

    def started(self, records: list[Record]) -> None:
        """The run begins, or goes on after these rounds."""

    def selected(self, assembly: Assembly, selection: dict[str, Any]) -> None:
        """Coarse pruning is over."""

    def round_done(self, assembly: Assembly, record: Record) -> None:
        """A round is over."""

    def finished(self, assembly: Assembly, result: dict[str, Any]) -> dict[str, Any]:
        """The run is over; returns its result, which an earlier end may have given already."""


class FolderRecorder:
    """Writes everything to the run folder."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def described(self, assembly: Assembly, fleet: Fleet | None) -> None:
        if fleet is not None:
            fleet.note()
        folder = self.folder
        write_atomically(folder.config, configs.dumps(assembly.asked).encode())
        write_json(folder.versions, versions())
        write_json(folder.about, about_record(assembly))
        save_split(folder, assembly.split)
        if assembly.weights:
            write_atomically(folder.weights, assembly.weights.content)

    def started(self, records: list[Record]) -> None:
        metrics.write(self.folder, records)

    def selected(self, assembly: Assembly, selection: dict[str, Any]) -> None:
        write_json(self.folder.selection, selection)
        save_checkpoint(self.folder, assembly.server)

    def round_done(self, assembly: Assembly, record: Record) -> None:
        server, config = assembly.server, assembly.config
        metrics.append(self.folder, record)
        if server.round % config.checkpoint_every == 0 or server.round == config.rounds:
            save_checkpoint(self.folder, server)

    def finished(self, assembly: Assembly, result: dict[str, Any]) -> dict[str, Any]:
        best = best_model(assembly.server)
        if best is not None:
            _save_model(assembly, best, self.folder.best)
        _save_model(assembly, assembly.server.model, self.folder.model)
        known = read_json(self.folder.result) if self.folder.result.exists() else {}
        if known.get("rounds") != result["rounds"]:
            write_json(self.folder.result, result)
        return read_json(self.folder.result)


def _save_model(assembly: Assembly, theta: Theta, path: Path) -> None:
    """Write a model as a state dict; the network has its values then."""
    assembly.engine.load(theta)
    assembly.engine.to("cpu")
    state = {name: value.contiguous() for name, value in assembly.model.state_dict().items()}
    write_atomically(path, require("safetensors.torch", extra="torch").save(state))


class NoRecorder:
    """Keeps nothing: the run folder is rank 0's, and perhaps on another machine."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def described(self, *args: Any) -> None:
        pass

    started = selected = round_done = described

    def finished(self, assembly: Assembly, result: dict[str, Any]) -> dict[str, Any]:
        return result


@contextmanager
def recording(ranks: Ranks, opened: Callable[[], RunFolder]) -> Iterator[Recorder]:
    """The recorder of this rank; rank 0 opens the folder and keeps others from writing to it."""
    if ranks.rank:
        path = of_first(ranks, bytes).decode()
        yield NoRecorder(RunFolder(Path(path)))
        return
    folder = opened()
    with folder.locked():
        of_first(ranks, lambda: str(folder.path).encode())
        yield FolderRecorder(folder)


@dataclass(frozen=True)
class Saved:
    """What is known of a run that goes on; one that was stopped early has no checkpoint."""

    config: Config
    split: Split | None
    checkpoint: Checkpoint | None
    weights: Weights | None = None
    records: list[Record] = field(default_factory=list)
    selection: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    """What whoever continues the run should know, or nothing."""

    @classmethod
    def of(cls, folder: RunFolder) -> "Saved":
        """What a run folder holds."""
        require_complete(folder)
        config = _begun_with(folder)
        split = load_split(folder) if folder.partition.exists() else None
        weights = _weights(folder, config)
        if not folder.checkpoint.exists():
            return cls(config, split, None, weights)
        checkpoint = read_checkpoint(folder)
        if not is_usable(checkpoint.tensors["theta"]):
            bounded = replace(config, robustness=configs.load(folder.config).robustness)
            return cls(bounded, split, None, weights, note=BEGINS_AGAIN)
        records = metrics.read_before(folder, checkpoint.round)
        return cls(config, split, checkpoint, weights, records, read_json(folder.selection))

    @classmethod
    def of_first(cls, folder: RunFolder, ranks: Ranks) -> "Saved":
        """What the run folder of rank 0 holds."""
        if ranks.rank == 0:
            saved = cls.of(folder)
            of_first(ranks, lambda: packed([_content(path) for path in _needed(folder)]))
            return saved
        contents = unpacked(of_first(ranks, bytes))
        with tempfile.TemporaryDirectory() as place:
            copy = RunFolder(Path(place))
            for path, content in zip(_needed(copy), contents, strict=True):
                if content:
                    path.write_bytes(content)
            return cls.of(copy)


BEFORE_THEY_WERE_THERE: dict[tuple[str, str], dict[str, Any]] = {
    ("gpu", "kernels"): {"kernels": "dense"},
    ("pruning", "depthwise"): {"depthwise": True},
    ("robustness", "bound"): {"bound": 0.0, "reject": 0.0},
}
"""How a run whose config does not name a setting went on before there was one."""


def _begun_with(folder: RunFolder) -> Config:
    """A run's config; what was begun before a setting was there goes on as it began."""
    config = configs.load(folder.config)
    written = tomllib.loads(folder.config.read_text(encoding="utf-8"))
    for (section, name), settings in BEFORE_THEY_WERE_THERE.items():
        if name not in written.get(section, {}):
            own = replace(getattr(config, section), **settings)
            config = replace(config, **{section: own})
    return config


def _weights(folder: RunFolder, config: Config) -> Weights | None:
    """What the run began with: its own copy, which must be the bytes of then."""
    if config.weights is None or not folder.weights.exists():
        return None
    weights = Weights(folder.weights.read_bytes(), config.weights)
    if read_json(folder.about).get("weights", {}).get("blake2b") != weights.digest:
        raise RunError(f"{folder.weights} is not what this run began with; put it back")
    return weights


def _needed(folder: RunFolder) -> list[Path]:
    """The files that a run goes on from."""
    described = [folder.config, folder.about, folder.weights, folder.partition]
    return [*described, folder.checkpoint, folder.selection, folder.metrics]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def versions() -> dict[str, str]:
    """What computes here."""
    system = {"python": platform.python_version(), "platform": platform.platform()}
    packages = {package: version_of(package) for package in PACKAGES}
    return {**system, **packages, "code": own_code()}
