"""Decoded images, memory-mapped from a folder that is either complete or not there.

An entry holds images and labels as ``.npy``, and a manifest with their checksum that is written
last. It is written into a hidden folder beside its place and renamed once it is on disk, so a
process that dies half-way leaves nothing that could be taken for a complete entry. What has changed
since is decoded again.
"""

import hashlib
import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedtiny.data.images import Array, ImageSet
from fedtiny.errors import DataError, printable
from fedtiny.files import parse_json, read_file, sync, sync_folder
from fedtiny.paths import user_path

FORMAT = 1
IMAGES = "images.npy"
LABELS = "labels.npy"
MANIFEST = "manifest.json"
MAX_BYTES = 1 << 40  # of a file of many images
ONE_DAY = 24 * 60 * 60
_digest = partial(hashlib.blake2b, digest_size=20)


@dataclass(frozen=True)
class Decoding:
    """Images about to be decoded: ``count`` uint8 images of one shape, in batches."""

    what: str
    count: int
    classes: tuple[str, ...]
    batches: Iterator[tuple[Array, Array]]

    @property
    def shown_classes(self) -> tuple[str, ...]:
        """The names of classes as a manifest keeps them."""
        return tuple(map(printable, self.classes))


def content_key(kind: str, files: Iterable[tuple[str, Path]], most: int = MAX_BYTES) -> str:
    """A name for what these tagged files hold, the same wherever they lie."""
    key = _digest(repr((FORMAT, kind)).encode())
    for tag, path in files:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise DataError(f"{path} is not a regular file; take it away")
        if path.exists() and path.stat().st_size > most:
            raise DataError(f"{path} is larger than {most:,} bytes; take it away")
        with path.open("rb") as file:
            content = hashlib.file_digest(file, _digest).hexdigest()
        key.update(repr((tag, content)).encode())
    return key.hexdigest()


@dataclass(frozen=True)
class Cache:
    """A folder of decoded image sets, one entry for each key."""

    folder: Path

    @classmethod
    def at(cls, folder: str | Path | None = None) -> "Cache":
        """The cache in this folder, else ``$FEDTINY_CACHE``, else ``~/.cache/fedtiny``."""
        chosen = folder or os.environ.get("FEDTINY_CACHE") or "~/.cache/fedtiny"
        return cls(user_path(chosen, "FEDTINY_CACHE").absolute())

    def get(self, key: str, decode: Callable[[], Decoding]) -> ImageSet:
        """The images kept under this key, decoded first where they are missing or damaged."""
        entry = self.folder / key
        if (found := read_entry(entry)) is not None:
            return found
        if entry.exists():
            print(
                f"fedtiny: the cache entry {entry} is damaged or of an older version; its images "
                "are decoded again",
                file=sys.stderr,
            )
        decoding = decode()
        try:
            with self._staging(key) as staging:
                write_entry(staging, decoding)
                publish(staging, entry)
        except OSError as refused:
            raise DataError(
                f"the cache {self.folder} cannot be written ({refused.strerror or refused}); "
                "set FEDTINY_CACHE to a folder that can"
            ) from refused
        if (found := read_entry(entry)) is not None:
            return found
        raise DataError(f"the cache entry {entry} was changed by another process; run again")

    @contextmanager
    def _staging(self, key: str) -> Iterator[Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(f".{key}-*"):  # of processes that died long ago
            with suppress(FileNotFoundError):
                if leftover.stat().st_mtime < time.time() - ONE_DAY:
                    shutil.rmtree(leftover, ignore_errors=True)
        staging = self.folder / f".{key}-{uuid.uuid4().hex}"
        staging.mkdir()
        try:
            yield staging
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def publish(staging: Path, entry: Path) -> None:
    """Put a finished entry into its place, unless another process has put a complete one there."""
    if _moved(staging, entry) or read_entry(entry) is not None:
        return
    aside = entry.with_name(f".{entry.name}-{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        entry.rename(aside)
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)
    if not _moved(staging, entry) and read_entry(entry) is None:
        raise OSError(f"{entry} is in the way")


def _moved(staging: Path, entry: Path) -> bool:
    try:
        staging.rename(entry)
    except OSError:
        return False
    sync_folder(entry.parent)
    return True


def write_entry(folder: Path, decoding: Decoding) -> None:
    """Decode into this folder and leave it complete and on disk."""
    with (folder / IMAGES).open("wb") as file:
        shape, labels = _write_images(file, decoding)
    with (folder / LABELS).open("wb") as file:
        np.save(file, labels)
        sync(file)
    with (folder / MANIFEST).open("w") as file:
        json.dump(_manifest(folder, shape, decoding.shown_classes), file)
        sync(file)
    sync_folder(folder)


def read_entry(folder: Path) -> ImageSet | None:
    """The images of a complete entry, memory-mapped copy-on-write; None for anything else."""
    try:
        manifest = parse_json(read_file(folder / MANIFEST))
        if not all((folder / name).is_file() for name in (IMAGES, LABELS)):
            return None
        images = np.load(folder / IMAGES, mmap_mode="c", allow_pickle=False)
        if manifest["bytes"] != _sizes(folder):  # before all of it is read
            return None
        if manifest != _manifest(folder, images.shape, tuple(manifest["classes"])):
            return None
        labels = np.array(np.load(folder / LABELS, mmap_mode="r", allow_pickle=False))
        return ImageSet(images, labels, tuple(manifest["classes"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError, DataError):
        return None


def _write_images(file: IO[bytes], decoding: Decoding) -> tuple[tuple[int, ...], Array]:
    shape: tuple[int, ...] = ()
    labels: list[Array] = []
    with progress(f"decoding {decoding.what}", decoding.count) as advance:
        for images, their_labels in decoding.batches:
            if not labels:
                shape = (decoding.count, *images.shape[1:])
                header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(images).data)
            labels.append(their_labels)
            advance(len(images))
    sync(file)
    return shape, np.concatenate(labels).astype(np.int64)


def _manifest(folder: Path, shape: tuple[int, ...], classes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "shape": list(shape),
        "classes": list(classes),
        "bytes": _sizes(folder),
        "digest": content_key(repr((shape, classes)), ((n, folder / n) for n in (IMAGES, LABELS))),
    }


def _sizes(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in (IMAGES, LABELS)}


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that advances the bar by n steps."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps: bar.advance(task, steps)
