"""Files that are complete at any moment, read and written without trust in what lies there.

Reading takes regular files of a bounded size, so that neither a pipe nor a device can hold it up.
Writing follows no symbolic link: a file is made under a random name that was free, and renamed into
its place. Only the folder that a user names may be reached through links.
"""

import hashlib
import json
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EFBIG, EINVAL, EISDIR, ELOOP, ENOMEM
from math import inf, isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import RunError, printable
from fedtiny.process import free_memory

MAX_PLAIN = 1 << 26  # bytes of a file of plain data
MAX_LINES = 1 << 30  # bytes of a file of lines
MAX_TENSORS = 1 << 36  # bytes of a file of tensors
LARGE = 1 << 28  # bytes of a file for which there may be no memory
MAX_DEPTH = 20  # of plain data: tables within tables
MAX_WHOLE = 1 << 64
TOO_DEEP = "it has too many tables within tables"
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)  # as `write_atomically` names them
NOT_REGULAR = "it is not a regular file"
LINK = "it is a symbolic link, and nothing is written through one; remove it"


def _flags(*names: str) -> int:
    """Flags of `os.open`, those that this system has."""
    return sum(getattr(os, name, 0) for name in names)


READING = os.O_RDONLY | _flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
WRITING = os.O_CREAT | _flags("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")


def read_file(path: Path, most: int = MAX_PLAIN) -> bytes:
    """The bytes of a regular file; an OSError says what is wrong with any other.

    >>> read_file(Path("/dev/zero"))
    Traceback (most recent call last):
    OSError: [Errno 22] it is not a regular file: '/dev/zero'
    """
    descriptor = os.open(path, READING)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(EINVAL, NOT_REGULAR, str(path))
        if found.st_size > most:
            raise OSError(EFBIG, f"it is larger than {most:,} bytes", str(path))
        if found.st_size > LARGE and 2 * found.st_size > (free_memory() or inf):
            raise OSError(ENOMEM, f"there is no memory for its {found.st_size:,} bytes", str(path))
        return _read(descriptor, found.st_size)
    finally:
        os.close(descriptor)


def _read(descriptor: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Say in one sentence what is wrong with a file that is read meanwhile."""
    try:
        yield
    except FileNotFoundError as error:
        raise RunError(f"{path} is missing") from error
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror or error}") from error
    except MemoryError as error:
        raise RunError(f"cannot read {path}: there is not enough memory") from error


@contextmanager
def writable(path: Path) -> Iterator[None]:
    """Say in one sentence why a file or folder cannot be written."""
    try:
        yield
    except OSError as error:
        why = LINK if error.errno == ELOOP else error.strerror or error
        raise RunError(f"cannot write {path}: {why}") from error


def make_folder(path: Path) -> None:
    """Make a folder for what is written next, unless it is there."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot make the folder {path}: {error.strerror}; choose another place"
        ) from error


def make_own_folder(path: Path) -> None:
    """Make a folder that belongs to fedtiny alone; a link to some other folder is refused."""
    if path.is_symlink():
        raise RunError(f"cannot write {path}: {LINK}")
    make_folder(path)


def make_closed_folder(path: Path) -> None:
    """Make a folder that another library writes into; what leads out of it is refused."""
    make_own_folder(path)
    root = os.path.realpath(path)
    with writable(path):
        for place, folders, files in os.walk(root, onerror=_raised):
            for inner in (Path(place, name) for name in (*folders, *files)):
                if inner.is_symlink() and not Path(os.path.realpath(inner)).is_relative_to(root):
                    raise RunError(f"cannot write {inner}: {LINK}")
                if not inner.is_symlink() and not inner.is_dir() and not inner.is_file():
                    raise RunError(f"cannot write {inner}: {NOT_REGULAR}; remove it")


def _raised(error: OSError) -> None:
    raise error


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that at any moment there is the old one or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with writable(path):
            _require_replaceable(path)
            write_new(temporary, data)
            temporary.replace(path)
            sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _require_replaceable(path: Path) -> None:
    """A pipe or a device is nobody's to replace, whatever the rights; a link is, not its target."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind) and not stat.S_ISDIR(kind):
        raise OSError(EINVAL, NOT_REGULAR)


def write_new(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file where there is none, not even a link; it is on disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_EXCL | WRITING, mode)
    try:
        _write(descriptor, data)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)


def is_temporary(path: Path) -> bool:
    """Whether a write that was killed left this behind."""
    return TEMPORARY.fullmatch(path.name) is not None


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
    with readable(path):
        data = read_file(path)
    try:
        value = parse_json(data)
    except ValueError as error:
        raise RunError(f"{path} is damaged") from error
    if not isinstance(value, dict):
        raise RunError(f"{path} is damaged")
    return value


def parse_json(data: bytes | str) -> Any:
    """Plain data of somebody else's; a ValueError if it is none, too deep or its numbers too large.

    Texts are made printable; a number that is not finite becomes None.
    """
    return _tidy(exact_json(data))


def exact_json(data: bytes | str, depth: int = MAX_DEPTH) -> Any:
    """Plain data as it was written; a ValueError if it is none or deeper than so many tables."""
    return _parsed(json.loads, data, depth)


def parse_toml(data: bytes) -> dict[str, Any]:
    """The tables of a TOML file; a ValueError if it is none or too deep."""
    return dict(_parsed(tomllib.loads, data.decode(), MAX_DEPTH))


def _parsed(parse: Callable[[Any], Any], data: bytes | str, depth: int) -> Any:
    try:
        value = parse(data)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    inner = [value]
    for _ in range(depth):
        inner = [item for table in inner for item in _items(table)]
    if any(True for table in inner for _ in _items(table)):
        raise ValueError(TOO_DEEP)
    return value


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _tidy(value: Any) -> Any:
    if isinstance(value, int) and abs(value) >= MAX_WHOLE:
        raise ValueError("a number is too large")
    if isinstance(value, dict):
        return {printable(name): _tidy(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not isfinite(value) else value


def append_line(path: Path, line: str) -> None:
    """Add a line that is on disk when this returns."""
    with writable(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | WRITING, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(EINVAL, NOT_REGULAR)
            _write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


def sync(file: IO[Any]) -> None:
    """See that what was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power cut, if the system lets a folder be synced."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _flags("O_CLOEXEC"))
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
    from safetensors.numpy import load  # a device does without

    tensors = load(data)
    return tensors, metadata_of(data)[key]


def metadata_of(data: bytes) -> dict[str, str]:
    """What stands beside the tensors of a safetensors file, if anything does."""
    header = exact_json(data[8 : 8 + int.from_bytes(data[:8], "little")])
    found: dict[str, str] = header.get("__metadata__", {})
    return found
