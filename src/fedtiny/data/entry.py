"""One entry of the cache: images and labels as ``.npy``, and a manifest that is written last."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedtiny.data.array import Array
from fedtiny.data.images import ImageSet
from fedtiny.data.progress import progress
from fedtiny.errors import DataError
from fedtiny.files import sync, sync_folder

FORMAT = 1
IMAGES = "images.npy"
LABELS = "labels.npy"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Decoding:
    """Images about to be decoded: ``count`` uint8 images of one shape, in batches."""

    what: str
    count: int
    classes: tuple[str, ...]
    batches: Iterator[tuple[Array, Array]]


def write_entry(folder: Path, decoding: Decoding) -> None:
    """Decode into this folder and leave it whole and on disk."""
    with (folder / IMAGES).open("wb") as file:
        shape, labels = _write_images(file, decoding)
    with (folder / LABELS).open("wb") as file:
        np.save(file, labels)
        sync(file)
    with (folder / MANIFEST).open("w") as file:
        json.dump(_manifest(folder, shape, decoding.classes), file)
        sync(file)
    sync_folder(folder)


def read_entry(folder: Path) -> ImageSet | None:
    """The images of a whole entry, memory-mapped copy-on-write; None for anything else."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        images = np.load(folder / IMAGES, mmap_mode="c", allow_pickle=False)
        if manifest != _manifest(folder, images.shape, tuple(manifest["classes"])):
            return None
        labels = np.load(folder / LABELS, allow_pickle=False)
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
                _write_header(file, shape)
            file.write(np.ascontiguousarray(images).data)
            labels.append(their_labels)
            advance(len(images))
    sync(file)
    return shape, np.concatenate(labels).astype(np.int64)


def _write_header(file: IO[bytes], shape: tuple[int, ...]) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _manifest(folder: Path, shape: tuple[int, ...], classes: tuple[str, ...]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "shape": list(shape),
        "classes": list(classes),
        "bytes": {name: (folder / name).stat().st_size for name in (IMAGES, LABELS)},
    }
