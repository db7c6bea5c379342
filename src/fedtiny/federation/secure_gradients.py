"""The largest gradients of each device, at positions of its own, summed unseen."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import SecureAggregationError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.reply_spec import expected
from fedtiny.privacy.secagg.quantize import HEADROOM, followed
from fedtiny.privacy.secagg.table import Table
from fedtiny.sparse.vector import SparseVector

Words = NDArray[np.uint32]
Gradients = Mapping[str, SparseVector]
BOUND = "gradients"
FIRST_BOUND = 1.0


def table_for(request: Request, devices: int) -> Table | None:
    """The table in which so many devices answer a request, if it asks for gradients."""
    counts, spec = expected(request).gradients, request.theta.param_spec
    if not counts:
        return None
    return Table(devices, sum(counts.values()), spec.prunable_count, request.id)


@dataclass(frozen=True)
class GradientTable:
    """A table of gradients by position among all prunable weights, and what is said of its bound.

    A gradient counts times the device's share of the heaviest weight, as every value does.
    """

    request: Request
    table: Table
    bound: float
    heaviest: int

    @property
    def size(self) -> int:
        """Numbers of the ring that it takes."""
        return self.table.size + 1

    def to_bytes(self) -> bytes:
        """As devices are told it."""
        return struct.pack("<d", self.bound)

    def told(self, scales: bytes, heaviest: int) -> "GradientTable":
        """As a device reads it at the end of the scales of an exchange."""
        (bound,) = struct.unpack("<d", scales[-8:])
        if not 0 < bound < np.inf:
            raise SecureAggregationError("the bound of gradients is not above zero and finite")
        return replace(self, bound=bound, heaviest=heaviest)

    @property
    def _starts(self) -> dict[str, int]:
        """The first position of each layer among all prunable weights."""
        sizes = self.request.theta.param_spec.sizes
        ends = np.cumsum([*sizes.values()]).tolist()
        return {layer: end - size for end, (layer, size) in zip(ends, sizes.items(), strict=True)}

    def filled(self, reply: Reply, weight: int, draw: np.random.Generator) -> Words:
        """A device's gradients, and how the largest compares with the bound."""
        starts, found = self._starts, reply.gradients
        keys = [starts[layer] + own.indices.astype(np.int64) for layer, own in found.items()]
        values = np.concatenate([own.values for own in found.values()], dtype=np.float64)
        levels, largest = self.table.levels, float(np.abs(values).max(initial=0.0))
        scaled = np.clip(values / self.bound, -1, 1) * levels * weight / self.heaviest
        numbers = np.clip(np.floor(scaled + draw.random(len(scaled))), -levels, levels)
        told = (largest > self.bound / HEADROOM) + (largest > self.bound) * (self.table.devices + 1)
        table = self.table.filled(np.concatenate(keys), numbers.astype(np.int64))
        return np.append(table, np.uint32(told))

    def read(self, total: Words, weight: int) -> Gradients:
        """The mean of each gradient that a device reported; those not reported count as zero.

        With a small chance a table cannot be read: then there are none.
        """
        try:
            keys, _, sums = self.table.read(total[:-1])
        except SecureAggregationError:
            keys, sums = np.empty(0, np.int64), np.empty(0, np.int64)
        means = sums * (self.bound / self.table.levels * self.heaviest / weight)
        starts, sizes = self._starts, self.request.theta.param_spec.sizes
        found = {}
        for layer in expected(self.request).gradients:
            first, last = np.searchsorted(keys, [starts[layer], starts[layer] + sizes[layer]])
            indices = (keys[first:last] - starts[layer]).astype(np.int32)
            found[layer] = SparseVector(sizes[layer], indices, means[first:last].astype(np.float32))
        return found

    def next_bound(self, total: Words) -> float:
        """The bound that follows from what devices say of this one."""
        clipped, near = divmod(int(total[-1]), self.table.devices + 1)
        return followed(self.bound, near > 0, clipped > 0)
