"""Files that are complete at any moment, and plain data or tensors in them."""

import hashlib
import json
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from fedtiny.errors import RunError


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
            sync(file)
        temporary.replace(path)
        sync_folder(path.parent)
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
            sync(file)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def sync(file: IO[Any]) -> None:
    """See that what was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power cut, if the system lets a folder be synced."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of(tensors: Mapping[str, NDArray[Any]], text: str) -> str:
    """What changes with any tensor and with the text beside them."""
    found = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).data)
    return found.hexdigest()


def with_text(data: bytes, key: str) -> tuple[dict[str, NDArray[Any]], Any]:
    """The tensors of a safetensors file, and what its metadata has under a key.

    Of bytes that are no such file it raises whatever comes: SafetensorError, LookupError,
    TypeError, ValueError or RecursionError.
    """
    tensors = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, header["__metadata__"][key]
