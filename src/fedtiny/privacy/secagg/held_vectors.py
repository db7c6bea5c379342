"""Masked vectors, until it is known whose count."""

import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

IN_MEMORY = 1 << 28  # bytes that are held in memory; more wait in a temporary file


class HeldVectors:
    """By device, a vector; beyond `in_memory` bytes in a file without a name."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._left = in_memory
        self._held: dict[int, bytes | tuple[int, int]] = {}  # or its place and length in the file
        self._file: IO[bytes] | None = None

    def add(self, device: int, data: bytes | memoryview) -> None:
        """Hold the words of a device."""
        if len(data) <= self._left:
            self._left -= len(data)
            self._held[device] = bytes(data)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._held[device] = (self._file.seek(0, 2), self._file.write(data))

    def remove(self, device: int) -> None:
        """Forget a device."""
        del self._held[device]

    def __contains__(self, device: object) -> bool:
        return device in self._held

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    def __getitem__(self, device: int) -> NDArray[np.uint32]:
        held = self._held[device]
        if isinstance(held, tuple):
            assert self._file is not None
            self._file.seek(held[0])
            held = self._file.read(held[1])
        return np.frombuffer(held, np.dtype("<u4"))

    def close(self) -> None:
        """Let go of all of them."""
        self._held.clear()
        if self._file is not None:
            self._file.close()
