"""One description of a message serves twice: to write it, and to count its bytes."""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import WireError
from fedtiny.federation.wire import indices
from fedtiny.sparse.mask import Indices


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

    def positions(self, positions: Indices | None, size: int) -> None:
        """Coded positions of a layer; None stands for all."""
        if self.counting:
            self.size += indices.coded_size(positions, size)
        else:
            for part in indices.coded(positions, size):
                self.raw(part)


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
