"""Parts of a message, and sorted positions in a layer as few bytes.

One description of a message writes it or counts its bytes. Bytes may lie, so a length is checked
before anything is made from it.

A layer of known size starts with its form: everything (0); a bitmap (1); or the gaps between
positions in Rice's code, whose parameter k is the form less 2: the number of positions u32, the
bytes of the unary part u32, and two parts that array operations read and write. Of each gap,
counted from 0, what is above its k low bits goes to the unary part, where the i-th set bit ends
the i-th gap; the k low bits go to k planes of one bit a position.
"""

import struct
from collections.abc import Iterator
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedtiny.errors import WireError
from fedtiny.sparse.mask import Indices

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


FULL, BITMAP, RICE = 0, 1, 2
MAX_LOW_BITS = 30
_RICE_HEAD = struct.Struct("<II")


def coded_size(positions: Indices | None, size: int) -> int:
    """Number of bytes `coded` takes; None stands for all positions."""
    return _choose(positions, size)[0]


def max_coded_size(count: int, size: int) -> int:
    """Number of bytes that `coded` never exceeds for at most so many positions.

    Of a gap's bits k are low ones, and 2^k is above 0.35 of the mean gap: so the unary part has
    less than four bits a position, and k is at most log2 of 0.7 of the largest mean gap.

    >>> max_coded_size(0, 1000), max_coded_size(1000, 1000)
    (40, 126)
    """
    low_bits = max(0.0, log2(0.7 * size / count)) if count else 0.0
    rice = 1 + _RICE_HEAD.size + MAX_LOW_BITS + 1 + ceil(count * (4 + low_bits) / 8)
    return min(1 + bytes_for(size), rice)


def expected_coded_size(count: int, size: int) -> int:
    """Average number of bytes that `coded` takes for so many random positions.

    The gaps between random positions are geometric, so the upper part of a gap in Rice's code
    with k low bits is q^(2^k) / (1 - q^(2^k)) on average, where q is the pruned share.

    >>> expected_coded_size(100, 100), expected_coded_size(50, 100)
    (1, 14)
    """
    if count == size:
        return 1
    rice = (_expected_rice(count, size, low_bits) for low_bits in range(MAX_LOW_BITS + 1))
    return min(1 + bytes_for(size), *rice)


def _expected_rice(count: int, size: int, low_bits: int) -> int:
    beyond = (1 - count / size) ** (1 << low_bits)
    unary = count * (1 + beyond / (1 - beyond)) if count else 0.0
    planes = low_bits * bytes_for(count)
    return 1 + _RICE_HEAD.size + planes + ceil(min(unary, count + size) / 8)


def coded(positions: Indices | None, size: int) -> Iterator[bytes]:
    """The positions in the smallest of the forms; None stands for all."""
    _, form = _choose(positions, size)
    yield bytes([form])
    if positions is None or form == FULL:
        return
    if form == BITMAP:
        yield _packed(positions, size)
    else:
        yield from _rice(_gaps(positions), form - RICE)


def write_positions(out: Writer, positions: Indices | None, size: int) -> None:
    """Coded positions of a layer; none is coded where bytes are only counted."""
    if out.counting:
        out.size += coded_size(positions, size)
    else:
        for part in coded(positions, size):
            out.raw(part)


def read_positions(reader: Reader, size: int) -> Indices | None:
    """What `coded` wrote, for a layer of this size; None stands for all positions."""
    (form,) = reader.numbers("<B", "the form of a layer")
    if form == FULL:
        return None
    if form == BITMAP:
        return np.flatnonzero(reader.packed_bits(size, "a bitmap")).astype(np.int32)
    if form - RICE > MAX_LOW_BITS:
        raise WireError(f"a layer has the unknown form {form}")
    return _read_rice(reader, size, form - RICE)


def _choose(positions: Indices | None, size: int) -> tuple[int, int]:
    """Bytes and form of the smallest code."""
    if positions is None or len(positions) == size:
        return 1, FULL
    gaps = _gaps(positions)
    rice = [(_rice_size(gaps, low_bits), RICE + low_bits) for low_bits in _low_bits_to_try(gaps)]
    return min((1 + bytes_for(size), BITMAP), *rice)


def _gaps(positions: Indices) -> Indices:
    gaps: Indices = np.diff(positions, prepend=np.int32(-1)) - np.int32(1)
    return gaps


def _low_bits_to_try(gaps: Indices) -> range:
    """Around the best choice for random gaps of this mean."""
    mean = float(gaps.mean()) if len(gaps) else 0.0
    guess = int(max(1.0, 0.7 * mean)).bit_length() - 1
    return range(max(0, guess - 1), min(MAX_LOW_BITS, guess + 1) + 1)


def _rice_size(gaps: Indices, low_bits: int) -> int:
    unary = int((gaps >> low_bits).sum(dtype=np.int64)) + len(gaps)
    return 1 + _RICE_HEAD.size + low_bits * bytes_for(len(gaps)) + bytes_for(unary)


def _rice(gaps: Indices, low_bits: int) -> Iterator[bytes]:
    ends = np.cumsum((gaps >> low_bits) + 1, dtype=np.int64) - 1
    unary = _packed(ends, int(ends[-1]) + 1 if len(ends) else 0)
    yield _RICE_HEAD.pack(len(gaps), len(unary))
    yield unary
    for bit in range(low_bits):
        yield np.packbits((gaps & (1 << bit)) != 0, bitorder="little").tobytes()


def _packed(positions: NDArray[np.integer], size: int) -> bytes:
    bits = np.zeros(size, np.bool_)
    bits[positions] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _read_rice(reader: Reader, size: int, low_bits: int) -> Indices:
    count, unary_bytes = reader.numbers(_RICE_HEAD.format, "the length of a layer")
    if count > size or unary_bytes > bytes_for(count + (size >> low_bits)):
        raise WireError(
            f"a layer of {size} weights claims {count} positions in {unary_bytes} bytes"
        )
    unary = reader.packed_bits(8 * unary_bytes, "the positions of a layer")
    if np.count_nonzero(unary) != count:
        raise WireError(f"a layer does not have the {count} positions it claims")
    high = np.flatnonzero(unary) - np.arange(count)
    return _joined(high, _read_low(reader, count, low_bits), low_bits, size)


def _read_low(reader: Reader, count: int, low_bits: int) -> Indices:
    low = np.zeros(count, np.int32)
    for bit in range(low_bits):
        plane = reader.packed_bits(count, "the positions of a layer")
        low |= plane.astype(np.int32) << bit
    return low


def _joined(high: NDArray[np.int64], low: Indices, low_bits: int, size: int) -> Indices:
    """Sum up the gaps; `high` already holds the sums of their upper parts."""
    positions = high << low_bits
    positions += np.cumsum(low, dtype=np.int64)
    positions += np.arange(len(low))
    if len(positions) and positions[-1] >= size:
        raise WireError(f"a position lies behind the end of a layer of {size} weights")
    return positions.astype(np.int32)
