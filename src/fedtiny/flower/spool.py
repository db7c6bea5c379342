"""Replies on disk, from when they come until they are averaged."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtiny.errors import RunError


class Spool:
    """A folder of replies by device, so that a server never holds them all in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._devices: set[int] = set()

    @classmethod
    @contextmanager
    def within(cls, folder: Path) -> Iterator["Spool"]:
        """An empty spool, gone in the end; what a killed server left there goes too."""
        shutil.rmtree(folder, ignore_errors=True)
        with _told(folder):
            folder.mkdir(parents=True)
        try:
            yield cls(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def put(self, device: int, reply: bytes) -> None:
        """Keep the reply of a device."""
        with _told(self._folder):
            self._place(device).write_bytes(reply)
        self._devices.add(device)

    def in_order(self) -> Iterator[tuple[int, bytes]]:
        """Every reply in the order of devices, one in memory at a time."""
        for device in sorted(self._devices):
            yield device, self._place(device).read_bytes()

    def _place(self, device: int) -> Path:
        return self._folder / f"{device}.reply"


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot keep replies in {folder}: {error.strerror}") from error
