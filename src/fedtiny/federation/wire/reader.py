"""Reading bytes that may lie: a length is checked before anything is made from it."""

import struct
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedtiny.errors import WireError


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
