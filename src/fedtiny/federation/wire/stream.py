"""Parts of a message: one description of it writes it or counts its bytes, and bytes may lie.

So a length is checked before anything is made from it.
"""

import struct
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedtiny.errors import WireError

MAX_NAME_BYTES = 255


class Reader:
    """Takes a message apart from front to back."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Number of bytes not yet taken."""
        return len(self._data) - self._at

    def take(self, count: int, what: str) -> memoryview:
        """The next bytes, without a copy."""
        if count > self.left:
            raise WireError(f"the message ends inside {what}: needs {count} bytes, has {self.left}")
        start, self._at = self._at, self._at + count
        return self._data[start : self._at]

    def numbers(self, layout: str, what: str) -> tuple[int, ...]:
        """Whole numbers in a layout of `struct`."""
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))

    def array(self, count: int, dtype: DTypeLike, what: str) -> NDArray[Any]:
        """A flat array of its own, aligned and writable."""
        little = np.dtype(dtype).newbyteorder("<")
        chunk = self.take(count * little.itemsize, what)
        return np.frombuffer(chunk, little).astype(np.dtype(dtype))

    def packed_bits(self, bits: int, what: str) -> NDArray[np.uint8]:
        """Bits as an array of zeros and ones; those that fill the last byte must be zero."""
        chunk = np.frombuffer(self.take(bytes_for(bits), what), np.uint8)
        if bits % 8 and chunk[-1] >> (bits % 8):
            raise WireError(f"bits are set behind the end of {what}")
        return np.unpackbits(chunk, count=bits, bitorder="little")

    def finish(self) -> None:
        """Make sure that nothing is left."""
        if self.left:
            raise WireError(f"{self.left} bytes follow the end of the message")


def bytes_for(bits: int) -> int:
    """Number of bytes that hold so many bits."""
    return -(-bits // 8)


class Writer:
    """Collects the parts of a message, or only counts their bytes: no position is coded then."""

    def __init__(self, *, counting: bool = False) -> None:
        self.counting = counting
        self.parts: list[bytes | memoryview] = []
        self.size = 0

    def raw(self, data: bytes | memoryview) -> None:
        """Bytes as they are."""
        self.size += len(data)
        if not self.counting:
            self.parts.append(data)


def write_numbers(out: Writer, layout: str, *numbers: int) -> None:
    """Whole numbers in a layout of `struct`."""
    try:
        out.raw(struct.pack(layout, *numbers))
    except struct.error as error:
        raise WireError(f"the numbers {numbers} do not fit into a message: {error}") from error


def write_values(out: Writer, array: NDArray[Any]) -> None:
    """The values of an array, without a copy where its memory is already in wire order."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    out.raw(little.reshape(-1).view(np.uint8).data)


def checked_name(name: object) -> str:
    """A name that can be shown to people as it is."""
    if isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= MAX_NAME_BYTES:
        return name
    raise WireError(f"a name needs 1 to {MAX_NAME_BYTES} printable bytes, not {ascii(name)[:60]}")


def decoded(text: memoryview) -> str:
    """Text of UTF-8."""
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"the message holds text that is not UTF-8: {error.reason}") from error
