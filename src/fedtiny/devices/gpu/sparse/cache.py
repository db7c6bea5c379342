"""Compiled kernels by what they were made of, in a folder that may be lost or damaged."""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from fedtiny.errors import ConfigError, RunError
from fedtiny.files import make_folder, write_atomically
from fedtiny.paths import user_path


def folder() -> Path | None:
    """``kernels`` in ``$FEDTINY_CACHE``, else in fedtiny's folder of the user's cache, if any."""
    named = os.environ.get("FEDTINY_CACHE")
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with suppress(ConfigError):  # there is no home folder
        return user_path(named or f"{users}/fedtiny", "FEDTINY_CACHE").absolute() / "kernels"
    return None


def key_of(parts: Iterable[str]) -> str:
    """A name for what is made of these parts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def find(key: str, suffix: str) -> Path | None:
    """The file kept under a key, if it is as it was written: its name tells its content."""
    where = folder()
    for path in sorted(where.glob(f"{key}-*{suffix}")) if where else ():
        with suppress(OSError):
            if path.name == _name(key, path.read_bytes(), suffix):
                return path
    return None


def keep(key: str, data: bytes, suffix: str) -> None:
    """Keep a file under a key, if the folder can be written."""
    where = folder()
    with suppress(RunError, OSError):
        if where:
            make_folder(where)
            write_atomically(where / _name(key, data, suffix), data)


def _name(key: str, data: bytes, suffix: str) -> str:
    return f"{key}-{hashlib.sha256(data).hexdigest()[:16]}{suffix}"
