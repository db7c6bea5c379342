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
from fedtiny.config.flat import Flat, flat, nested
from fedtiny.devices.distributed import of_first, packed, unpacked
from fedtiny.devices.ranks import Ranks
from fedtiny.errors import ConfigError, RunError
from fedtiny.extras import own_code, require, version_of
from fedtiny.files import MAX_TENSORS, read_file, write_atomically, write_json
from fedtiny.runs import metrics, reading
from fedtiny.runs.assembly import Assembly
from fedtiny.runs.best import best_model
from fedtiny.runs.checkpoint import Checkpoint, read_checkpoint, require_complete, save_checkpoint
from fedtiny.runs.fleet import Fleet
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import Record, about_record
from fedtiny.runs.split import NOT_OURS, Split, read_split, save_split
from fedtiny.sparse.theta import Theta

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
        save_split(folder, assembly.split, _lasting(assembly.asked))

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
        yield FolderRecorder(folder)


@dataclass(frozen=True)
class Saved:
    """What is known of a run that goes on; one that was stopped early has no checkpoint."""

    config: Config
    split: Split | None
    checkpoint: Checkpoint | None
    records: list[Record] = field(default_factory=list)
    selection: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: RunFolder) -> "Saved":
        """What a run folder holds."""
        require_complete(folder)
        config = _begun_with(folder)
        if not folder.partition.exists():
            return cls(config, None, None)
        split, settings = read_split(folder)
        _require_unchanged(folder, split, settings)
        if not folder.checkpoint.exists():
            return cls(config, split, None)
        checkpoint = read_checkpoint(folder)
        records = metrics.read_before(folder, checkpoint.round, checkpoint.state.get("record"))
        if not all(map(reading.WHOLE_RECORD, records)):
            raise RunError(f"{folder.metrics} is damaged: a round lacks some of its figures")
        return cls(config, split, checkpoint, records, reading.selection(folder))

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


def _begun_with(folder: RunFolder) -> Config:
    """A run's config; what was begun before there were sparse kernels keeps to dense ones."""
    config = reading.config(folder)
    if "kernels" in tomllib.loads(read_file(folder.config).decode()).get("gpu", {}):
        return config
    return replace(config, gpu=replace(config.gpu, kernels="dense"))


MAY_CHANGE = (
    *("rounds", "workers", "eval_every", "eval_devices", "checkpoint_every", "save_best"),
    *("data.root", "device.python", "gpu.lanes", "gpu.cards"),
)
"""Settings of a stopped run that may be edited: how far it goes, what it keeps, where it runs."""


def _lasting(config: Config) -> Flat:
    """The settings that hold for a run as long as it lasts."""
    return {name: value for name, value in flat(config).items() if name not in MAY_CHANGE}


def _require_unchanged(folder: RunFolder, split: Split, settings: Flat | None) -> None:
    """Refuse a config that was edited after the run was begun."""
    now = _lasting(reading.config(folder))
    try:
        begun = now if settings is None else _lasting(configs.from_dict(nested(settings)))
    except (ConfigError, *NOT_OURS) as error:
        raise RunError(f"{folder.partition} is damaged") from error
    if settings is None:
        begun = {**now, "fleet.devices": len(split.devices)}
    changed = [
        f"{name} was {begun.get(name, 'left out')} and is {now.get(name, 'left out')}"
        for name in sorted(begun.keys() | now.keys())
        if begun.get(name) != now.get(name)
    ]
    if changed:
        raise RunError(
            f"{folder.config} was edited after the run was begun: {'; '.join(changed)}; "
            "put it back, or begin another run with the new settings"
        )


def _needed(folder: RunFolder) -> list[Path]:
    """The files that a run goes on from."""
    return [folder.config, folder.partition, folder.checkpoint, folder.selection, folder.metrics]


def _content(path: Path) -> bytes:
    return read_file(path, MAX_TENSORS) if path.exists() else b""


def versions() -> dict[str, str]:
    """What computes here."""
    system = {"python": platform.python_version(), "platform": platform.platform()}
    packages = {package: version_of(package) for package in PACKAGES}
    return {**system, **packages, "code": own_code()}
