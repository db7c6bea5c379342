"""Decoded images, memory-mapped from a folder that is either whole or not there.

An entry is written into a hidden folder beside its place and renamed once it is on disk, so a
process that dies half-way leaves nothing that could be taken for a whole entry.
"""

import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedtiny.data.entry import FORMAT, Decoding, read_entry, write_entry
from fedtiny.data.images import ImageSet
from fedtiny.errors import DataError
from fedtiny.files import sync_folder

ONE_DAY = 24 * 60 * 60
_digest = partial(hashlib.blake2b, digest_size=20)


def content_key(kind: str, files: Iterable[tuple[str, Path]]) -> str:
    """A name for what these tagged files hold, the same wherever they lie."""
    whole = _digest(repr((FORMAT, kind)).encode())
    for tag, path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, _digest).hexdigest()
        whole.update(repr((tag, content)).encode())
    return whole.hexdigest()


@dataclass(frozen=True)
class Cache:
    """A folder of decoded image sets, one entry for each key."""

    folder: Path

    @classmethod
    def at(cls, folder: str | Path | None = None) -> "Cache":
        """The cache in this folder, else ``$FEDTINY_CACHE``, else ``~/.cache/fedtiny``."""
        chosen = folder or os.environ.get("FEDTINY_CACHE") or "~/.cache/fedtiny"
        try:
            return cls(Path(chosen).expanduser().absolute())
        except RuntimeError as homeless:
            raise DataError("there is no home folder; set FEDTINY_CACHE to a folder") from homeless

    def get(self, key: str, decode: Callable[[], Decoding]) -> ImageSet:
        """The images kept under this key, decoded first where they are missing or damaged."""
        entry = self.folder / key
        found = read_entry(entry)
        if found is None:
            self._fill(entry, decode())
            found = read_entry(entry)
        if found is None:
            raise DataError(f"the cache entry {entry} was changed by another process; run again")
        return found

    def _fill(self, entry: Path, decoding: Decoding) -> None:
        try:
            with self._staging(entry.name) as staging:
                write_entry(staging, decoding)
                publish(staging, entry)
        except OSError as refused:
            raise DataError(
                f"the cache {self.folder} cannot be written ({refused.strerror or refused}); "
                "set FEDTINY_CACHE to a folder that can"
            ) from refused

    @contextmanager
    def _staging(self, key: str) -> Iterator[Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._sweep(key)
        staging = self.folder / f".{key}-{uuid.uuid4().hex}"
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _sweep(self, key: str) -> None:
        """Remove what processes that died long ago left of this entry."""
        for leftover in self.folder.glob(f".{key}-*"):
            with suppress(FileNotFoundError):
                if leftover.stat().st_mtime < time.time() - ONE_DAY:
                    shutil.rmtree(leftover, ignore_errors=True)


def publish(staging: Path, entry: Path) -> None:
    """Put a finished entry into its place, unless another process has put a whole one there."""
    if _moved(staging, entry) or read_entry(entry) is not None:
        return
    _discard(entry)
    if not _moved(staging, entry) and read_entry(entry) is None:
        raise OSError(f"{entry} is in the way")


def _moved(staging: Path, entry: Path) -> bool:
    try:
        staging.rename(entry)
    except OSError:
        return False
    sync_folder(entry.parent)
    return True


def _discard(entry: Path) -> None:
    aside = entry.with_name(f".{entry.name}-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        entry.rename(aside)
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
