"""Sparse values that sum under masks: an invertible Bloom lookup table (Goodrich and Mitzenmacher).

Devices that report different positions cannot sum them one by one. So each position is added to
four cells that public hashes name: how many there are, the sum of the positions, of their check
sums and of their values. The sum of all devices' tables is the table of all their positions; cells
that one position alone is in give it away, are taken out of the others, and so on until all is
known or, with a small chance, none is. Who reads it learns all positions, and the value of one that
a single device reported, though not which device.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import SecureAggregationError

HASHES = 4
SPARE, LEAST = 1.4, 128  # cells for each distinct position, and beside
FIELDS = 4  # count, position, check sum, value
Words = NDArray[np.uint32]
Keys = NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """The form of a table: for so many devices, each with so many positions below `largest`."""

    devices: int
    entries: int
    """Most positions of a device."""
    largest: int
    seed: int

    def __post_init__(self) -> None:
        if self.devices * self.largest >= 2**32:
            raise SecureAggregationError(
                f"positions of {self.largest:,} weights do not sum over {self.devices} devices in "
                "32 bits; use --pruning.growth shared, or ask fewer devices"
            )

    @property
    def cells(self) -> int:
        """Number of cells, in four equal parts."""
        return HASHES * ceil((SPARE * self.devices * self.entries + LEAST) / HASHES)

    @property
    def size(self) -> int:
        """Numbers of the ring that it takes."""
        return FIELDS * self.cells

    @property
    def levels(self) -> int:
        """Largest magnitude of a value, so that values of all devices sum below 2^31."""
        return (2**31 - 1) // self.devices

    def filled(self, keys: Keys, values: NDArray[np.int64]) -> Words:
        """A device's table: whole numbers by position, none above `levels`."""
        if len(keys) > self.entries or (np.abs(values) > self.levels).any():
            raise SecureAggregationError("a table is asked to hold more than it has room for")
        table = np.zeros((FIELDS, self.cells), dtype=np.int64)
        self._add(table, keys, np.ones_like(keys), values)
        return (table & 0xFFFFFFFF).astype(np.uint32).reshape(-1)

    def _add(
        self, table: NDArray[np.int64], keys: Keys, counts: Keys, values: NDArray[np.int64]
    ) -> None:
        fields = (counts, counts * keys, counts * self._check(keys), values)
        for cells in self._places(keys):
            for row, own in zip(table, fields, strict=True):
                np.add.at(row, cells, own)

    def read(self, total: Words) -> tuple[Keys, Keys, NDArray[np.int64]]:
        """All positions of a sum of tables in order, how many devices have each, and their sums."""
        table = total.reshape(FIELDS, self.cells).astype(np.int64)
        found: dict[int, tuple[int, int]] = {}
        while (table[:3] != 0).any():
            keys, counts, values = self._single(table)
            if not len(keys) or found.keys() & set(keys.tolist()):
                raise SecureAggregationError("the table of gradients cannot be read")
            found |= dict(zip(keys.tolist(), zip(counts, values, strict=True), strict=True))
            self._add(table, keys, -counts, -values)
            table &= 0xFFFFFFFF
        if table.any():
            raise SecureAggregationError("the table of gradients cannot be read")
        ordered = np.array(sorted(found), dtype=np.int64)
        told = np.array([found[key] for key in ordered.tolist()], dtype=np.int64).reshape(-1, 2)
        return ordered, told[:, 0], told[:, 1]

    def _single(self, table: NDArray[np.int64]) -> tuple[Keys, Keys, NDArray[np.int64]]:
        """The positions that are alone in a cell, each once."""
        counts, sums, checks, values = table
        chosen = np.flatnonzero((counts > 0) & (counts <= self.devices))
        chosen = chosen[sums[chosen] % counts[chosen] == 0]
        keys = sums[chosen] // counts[chosen]
        expected = (counts[chosen] * self._check(keys)) & 0xFFFFFFFF
        alone = (keys < self.largest) & (expected == checks[chosen])
        keys, first = np.unique(keys[alone], return_index=True)
        cells = chosen[alone][first]
        signed = (values[cells] ^ 0x80000000) - 0x80000000
        return keys, counts[cells], signed

    def _check(self, keys: Keys) -> Keys:
        return (_mixed(keys, self.seed + HASHES) & np.uint64(0xFFFFFFFF)).astype(np.int64)

    def _places(self, keys: Keys) -> list[Keys]:
        part = self.cells // HASHES
        return [
            n * part + (_mixed(keys, self.seed + n) % np.uint64(part)).astype(np.int64)
            for n in range(HASHES)
        ]


def _mixed(keys: Keys, seed: int) -> NDArray[np.uint64]:
    """Sixty-four bits that look random, of each key (the finalizer of SplitMix64)."""
    with np.errstate(over="ignore"):
        z = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed * 0xD1B54A32D192ED03 % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
