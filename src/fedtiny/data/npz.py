"""Arrays of an .npz file, which may claim more than it holds or than fits into memory."""

import zlib
from math import prod
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib import format as npy

from fedtiny.data.images import Array
from fedtiny.errors import DataError
from fedtiny.files import LARGE
from fedtiny.process import free_memory

MAX_ARRAYS = 1 << 34  # bytes of all arrays, if the system does not tell its memory
BROKEN = (OSError, ValueError, LookupError, EOFError, RuntimeError, BadZipFile, zlib.error)
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npz(file: Path) -> dict[str, Array]:
    """The arrays of an .npz file, by name."""
    try:
        with ZipFile(file) as archive:
            _require_memory(file, archive)
            _require_whole(archive)
        with np.load(file, allow_pickle=False) as held:
            return {name: held[name] for name in held.files}
    except BROKEN as broken:
        raise DataError(f"{file} is not a readable .npz file of plain arrays") from broken


def _require_memory(file: Path, archive: ZipFile) -> None:
    """Refuse what expands beyond memory; no member can give more than its entry says."""
    total = sum(entry.file_size for entry in archive.infolist())
    free = free_memory()
    if total > LARGE and 2 * total > (MAX_ARRAYS if free is None else free):
        raise DataError(f"there is no memory for the {total:,} bytes of the arrays in {file}")


def _require_whole(archive: ZipFile) -> None:
    """Refuse a header that claims more values than there are bytes."""
    for entry in archive.infolist():
        with archive.open(entry) as member:
            if _claimed(member) > entry.file_size:
                raise ValueError(f"{entry.filename} is not whole")


def _claimed(member: IO[bytes]) -> int:
    """Bytes of an array by its header, with one for a value of none; 0 if it is no array."""
    if member.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
        return 0
    member.seek(0)
    shape, _, dtype = HEADERS[npy.read_magic(member)](member)
    return prod(shape) * max(1, dtype.itemsize)
