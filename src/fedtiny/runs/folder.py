"""The files of a run, each name in one place, and how they are written."""

import contextlib
import json
import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from fedtiny import config as configs
from fedtiny.errors import FedTinyError, RunError
from fedtiny.runs.user_inputs import as_arguments, own_inputs


class LockedError(RunError):
    """A run folder that somebody else is working on."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"another process is working on {path}")


_LOCKED_HERE: set[Path] = set()
"""Folders that this process holds; to look at such a file's lock would let go of it."""


class RunFolder:
    """Where a run keeps everything it knows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.versions = path / "versions.json"
        self.about = path / "about.json"
        self.partition = path / "partition.safetensors"
        self.selection = path / "selection.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.model = path / "model.safetensors"
        self.packed = path / "model.packed"
        self.result = path / "result.json"
        self.report = path / "report.html"
        self.nodes = path / "nodes.json"
        self.spool = path / ".spool"
        self.lock = path / ".lock"

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """A new run folder; one that holds anything already is never touched."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(not _is_leftover(entry) for entry in path.iterdir()):
                if cls(path).is_locked():
                    raise LockedError(path)
                raise RunError(
                    f"{path} is not empty; choose another --out, or continue a run there with: "
                    f"{way_on(cls(path))}"
                )
        except OSError as error:
            raise RunError(f"cannot make the run folder {path}: {error.strerror}") from error
        return cls(path)

    @classmethod
    def create_below(cls, parent: Path, stem: str) -> "RunFolder":
        """A new run folder with a free name: stem, stem-2, stem-3 and so on."""
        try:
            parent.mkdir(parents=True, exist_ok=True)
            for path in _free_names(parent, stem):
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return cls(path)
        except OSError as error:
            raise RunError(f"cannot make a run folder in {parent}: {error.strerror}") from error
        raise AssertionError("unreachable")

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder."""
        folder = cls(path)
        if not folder.config.is_file():
            raise RunError(f"{path} is not a run folder: it has no {folder.config.name}")
        return folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from writing to the same run."""
        path = self.path.resolve()
        if path in _LOCKED_HERE:
            raise LockedError(self.path)
        try:
            lock = self.lock.open("w")
        except OSError as error:
            raise RunError(
                f"cannot write to the run folder {self.path}: {error.strerror}"
            ) from error
        with lock:
            if not _lock(lock.fileno()):
                raise LockedError(self.path)
            _LOCKED_HERE.add(path)
            try:
                yield
            finally:
                _LOCKED_HERE.discard(path)

    def is_locked(self) -> bool:
        """Whether somebody is working on the run."""
        if self.path.resolve() in _LOCKED_HERE:
            return True
        try:
            with self.lock.open("r+") as lock:
                return not _lock(lock.fileno())
        except OSError:
            return False


def _lock(descriptor: int) -> bool:
    """Lock a file until it is closed or this process ends; children do not share the lock.

    Systems without such locks, and file systems that cannot hold them, go without.
    """
    try:
        import fcntl

        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (ImportError, OSError):
        return True
    return True


def _is_leftover(entry: Path) -> bool:
    """Whether a killed run left this behind before it had written anything of use."""
    return entry.name == ".lock" or (entry.name.startswith(".") and entry.suffix == ".tmp")


def quoted(path: Path) -> str:
    """A path as it can be pasted into a shell."""
    return shlex.quote(str(path))


def way_on(folder: RunFolder) -> str:
    """What continues a run: a command, or Python where data or model are one's own.

    A run with real devices has them noted.
    """
    if folder.nodes.exists():
        run = json.dumps(str(folder.path.absolute()), ensure_ascii=False)
        return f"flwr run APP --run-config {shlex.quote(f'flower.run={run} flower.resume=true')}"
    own = _own_inputs(folder)
    if own:
        return f"fedtiny.resume({str(folder.path)!r}, {as_arguments(own)})  # in Python"
    return f"fedtiny resume {quoted(folder.path)}"


def _own_inputs(folder: RunFolder) -> Collection[str]:
    """What must be given again, as far as the folder tells."""
    try:
        return own_inputs(configs.load(folder.config))
    except FedTinyError:
        return ()


def _free_names(parent: Path, stem: str) -> Iterator[Path]:
    yield parent / stem
    number = 2
    while True:
        yield parent / f"{stem}-{number}"
        number += 1


def make_folder(path: Path) -> None:
    """Make a folder for what is written next, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot make the folder {path}: {error.strerror}; choose another place"
        ) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that at any moment there is the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write plain data for people and programs."""
    write_atomically(path, (json.dumps(plain(value), indent=1) + "\n").encode())


def plain(value: Any) -> Any:
    """The same data without what JSON cannot say: a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is missing or damaged") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged")
    return value


def append_line(path: Path, line: str) -> None:
    """Add a line that is on disk when this returns."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
