"""Who keeps what a run does: rank 0 writes the run folder, its other ranks keep nothing."""

import json
import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.devices.distributed import of_first, packed, unpacked
from fedtiny.devices.ranks import Ranks
from fedtiny.errors import RunError
from fedtiny.extras import own_code, require, version_of
from fedtiny.files import MAX_TENSORS, read_file, write_atomically, write_json
from fedtiny.process import Stopped
from fedtiny.runs import begun, metrics, reading
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.best import best_model
from fedtiny.runs.checkpoint import Checkpoint, read_checkpoint, require_complete, save_checkpoint
from fedtiny.runs.fleet import Fleet
from fedtiny.runs.folder import FORMAT, RunFolder, way_on
from fedtiny.runs.metrics import Record, about_record, evaluation_record
from fedtiny.runs.split import Split, read_split, save_split
from fedtiny.runs.weights import Weights
from fedtiny.sparse.theta import Theta

BEGINS_AGAIN = (
    "the checkpoint has values that are not finite or too large to compute with, so the run begins "
    "again"
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
        write_json(folder.versions, {"format": FORMAT, **versions()})
        write_json(folder.about, about_record(assembly))
        save_split(folder, assembly.split, begun.lasting(assembly.asked))
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
            save_checkpoint(self.folder, server, record)

    def finished(self, assembly: Assembly, result: dict[str, Any]) -> dict[str, Any]:
        if measured := evaluation_record(assembly):
            write_atomically(self.folder.evaluation, f"{json.dumps(measured)}\n".encode())
        best = best_model(assembly.server)
        if best is not None:
            _save_model(assembly, best, self.folder.best)
        _save_model(assembly, assembly.server.model, self.folder.model)
        try:
            known = reading.result(self.folder)
        except RunError:  # there is none, or a damaged one
            known = {}
        if known.get("rounds") != result["rounds"]:
            write_json(self.folder.result, result)
            return result
        return known


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
        try:
            yield FolderRecorder(folder)
        except Stopped as stopped:
            stopped.way_on = way_on(folder) if folder.config.exists() else ""
            raise


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
        config = reading.config(folder)
        if not folder.partition.exists():
            return cls(config, None, None, begun.weights_of(folder, config))
        split, settings = read_split(folder)
        begun.require_unchanged(folder, config, settings)
        weights = begun.weights_of(folder, config)
        if not folder.checkpoint.exists():
            return cls(config, split, None, weights)
        checkpoint = read_checkpoint(folder)
        if not checkpoint.is_usable:
            return cls(config, split, None, weights, note=BEGINS_AGAIN)
        records = metrics.read_before(folder, checkpoint.round, checkpoint.state.get("record"))
        if not all(map(reading.WHOLE_RECORD, records)):
            raise RunError(f"{folder.metrics} is damaged: a round lacks some of its figures")
        return cls(config, split, checkpoint, weights, records, reading.selection(folder))

    @classmethod
    def of_first(cls, folder: RunFolder, ranks: Ranks) -> "Saved":
        """What the run folder of rank 0 holds."""
        if ranks.rank == 0:
            saved = cls.of(folder)
            of_first(ranks, lambda: packed([_content(path) for path in _needed(folder)]))
            return saved
        contents = unpacked(of_first(ranks, bytes))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            copy = RunFolder(Path(place))
            for path, content in zip(_needed(copy), contents, strict=True):
                if content:
                    path.write_bytes(content)
            return cls.of(copy)


def _needed(folder: RunFolder) -> list[Path]:
    """The files that a run goes on from."""
    described = [folder.config, folder.about, folder.weights, folder.partition]
    return [*described, folder.checkpoint, folder.selection, folder.metrics]


def _content(path: Path) -> bytes:
    return read_file(path, MAX_TENSORS) if path.exists() else b""


def versions() -> dict[str, str]:
    """What computes here."""
    system = {"python": platform.python_version(), "platform": platform.platform()}
    packages = {package: version_of(package) for package in PACKAGES}
    return {**system, **packages, "code": own_code()}
