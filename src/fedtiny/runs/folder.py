"""The files of a run, each name in one place."""

import contextlib
import errno
import json
import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from fedtiny import config as configs
from fedtiny.errors import FedTinyError, RunError
from fedtiny.files import LINK, NOT_REGULAR, WRITING, is_temporary, read_json
from fedtiny.paths import user_path
from fedtiny.runs.inputs import as_arguments, own_inputs


class LockedError(RunError):
    """A run folder that somebody else is working on."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"another process is working on {path}")


class EarlierVersionError(RunError):
    """A run folder that is not as this version writes one."""

    retryable = False

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} was made by an earlier version of fedtiny, whose runs this one does not read; "
            "begin the run again"
        )


FORMAT = "1"
"""How this version writes run folders; their `versions.json` says it."""
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
        self.weights = path / "weights.safetensors"
        self.best = path / "best.safetensors"
        self.packed = path / "model.packed"
        self.result = path / "result.json"
        self.evaluation = path / "evaluation.json"
        self.report = path / "report.html"
        self.nodes = path / "nodes.json"
        self.questions = path / "questions.jsonl"
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
        path, number = parent / stem, 1
        try:
            parent.mkdir(parents=True, exist_ok=True)
            while True:
                with contextlib.suppress(FileExistsError):
                    path.mkdir()
                    return cls(path)
                number += 1
                path = parent / f"{stem}-{number}"
        except OSError as error:
            raise RunError(f"cannot make a run folder in {parent}: {error.strerror}") from error

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run folder."""
        path = user_path(path, "the run folder")
        folder = cls(path)
        if not path.exists():
            raise RunError(f"there is no {path}; give the folder of a run")
        if not path.is_dir() and not path.is_file():
            raise RunError(f"{path} is neither a folder nor a regular file")
        if folder.config.exists() and not folder.config.is_file():
            raise RunError(f"cannot read {folder.config}: {NOT_REGULAR}")
        if not folder.config.is_file():
            raise RunError(f"{path} is not a run folder: it has no {folder.config.name}")
        folder.require_format()
        return folder

    def require_format(self) -> None:
        """Refuse what another version has written."""
        try:
            told = read_json(self.versions).get("format")
        except RunError:  # damaged, as its readers say, or not yet there
            return
        if told is None:
            raise EarlierVersionError(self.path)
        if told != FORMAT:
            raise RunError(f"{self.path} has format {told!r:.20}; this version reads {FORMAT!r}")

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from writing to the same run; what a killed process left there is removed."""
        path = self.path.resolve()
        if path in _LOCKED_HERE:
            raise LockedError(self.path)
        try:
            lock = os.open(self.lock, os.O_RDWR | WRITING, 0o666)
        except OSError as error:
            why = f"{self.lock.name}: {LINK}" if error.errno == errno.ELOOP else error.strerror
            raise RunError(f"cannot write to the run folder {self.path}: {why}") from error
        try:
            if not _lock(lock):
                raise LockedError(self.path)
            _LOCKED_HERE.add(path)
            self._remove_leftovers()
            yield
        finally:
            _LOCKED_HERE.discard(path)
            os.close(lock)

    def _remove_leftovers(self) -> None:
        """Torn writes, and replies of devices that were not averaged."""
        shutil.rmtree(self.spool, ignore_errors=True)
        with contextlib.suppress(OSError):
            for entry in self.path.iterdir():
                if is_temporary(entry) and stat.S_ISREG(entry.lstat().st_mode):
                    entry.unlink(missing_ok=True)

    def is_locked(self) -> bool:
        """Whether somebody is working on the run."""
        if self.path.resolve() in _LOCKED_HERE:
            return True
        try:
            lock = os.open(self.lock, os.O_RDWR | (WRITING & ~os.O_CREAT))
        except OSError:
            return False
        try:
            return not _lock(lock)
        finally:
            os.close(lock)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Keep other processes from beginning the same work; a file of this name holds the claim."""
    path.parent.mkdir(parents=True, exist_ok=True)
    claim = os.open(path, os.O_RDWR | WRITING, 0o666)
    try:
        if not _lock(claim) or not _is_at(path, claim):
            raise LockedError(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(claim)


def _is_at(path: Path, descriptor: int) -> bool:
    """Tell whether an open file is still the one of this name: who held it may have removed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
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
    return entry.name == ".lock" or is_temporary(entry)


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
    with contextlib.suppress(FedTinyError):
        own = own_inputs(configs.load(folder.config, programs=True))
        if own:
            return f"fedtiny.resume({str(folder.path)!r}, {as_arguments(own)})  # in Python"
    return f"fedtiny resume {quoted(folder.path)}"
