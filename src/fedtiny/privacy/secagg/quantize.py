"""Values as whole numbers whose sum cannot overflow, and the sum of them as a mean again.

A value x of a part with the public bound c becomes (x + c) / 2c of `levels` steps, times the
device's share of the heaviest weight, rounded up or down at random so that the mean stays right.
Each number is at most `levels`, and so many devices times `levels` is below 2^32. Where devices add
noise, there is room for it on both sides.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import SecureAggregationError
from fedtiny.privacy.secagg.noise_shares import NoiseShares

RING_BITS = 32
HEADROOM = 16.0  # a bound is this many times a typical largest value, so that few are clipped
WIDER, NARROWER = 4.0, 0.5

Doubles = NDArray[np.float64]
Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Mean:
    """What a sum of numbers says: the weighted mean, and where the bounds should go."""

    values: Doubles
    weight: int
    near: Sequence[bool]
    """By part, whether a device has a value that is not far below the bound."""
    clipped: Sequence[bool]
    """By part, whether a device has a value beyond the bound, which was brought back to it."""


@dataclass(frozen=True)
class Scales:
    """How the values of each part become numbers, the same for all devices of an exchange."""

    sizes: tuple[int, ...]
    """Number of values by part."""
    bounds: tuple[float, ...]
    """Largest magnitude by part."""
    heaviest: int
    """Largest weight of a device."""
    devices: int
    reports: bool = True
    """Whether devices say how their values compare with the bounds."""
    noise: NoiseShares | None = None
    """What devices add to their numbers, if they do."""

    def __post_init__(self) -> None:
        if self.devices * max(self.heaviest, self.devices + 2) >= 2 ** (RING_BITS - 1):
            raise SecureAggregationError(
                f"weights up to {self.heaviest} of {self.devices} devices do not fit "
                f"{RING_BITS} bits: ask fewer devices"
            )
        if not all(0 < bound < np.inf for bound in self.bounds):
            raise SecureAggregationError("a bound of values is not above zero and finite")

    @property
    def levels(self) -> int:
        """Steps between the least and the largest value of the heaviest device."""
        return self.noise.levels if self.noise else int(2**RING_BITS - 1) // self.devices

    @property
    def count(self) -> int:
        """Numbers of a vector: one a value, one a part for its bound, and the weight."""
        return sum(self.sizes) + (len(self.sizes) if self.reports else 0) + 1

    @cached_property
    def _each(self) -> Doubles:
        """The bound of every value."""
        return np.repeat(np.array(self.bounds, dtype=np.float64), self.sizes)

    @cached_property
    def _least(self) -> Doubles:
        """The least that every value may be."""
        return -self._each

    @cached_property
    def _range(self) -> Doubles:
        """How far apart the least and the largest of every value are."""
        return 2 * self._each

    def to_bytes(self) -> bytes:
        """As devices are told them."""
        return struct.pack(f"<QI{len(self.bounds)}d", self.heaviest, self.devices, *self.bounds)

    def told(self, data: bytes) -> "Scales":
        """The scales as a device reads them, which knows the sizes from the request."""
        form = f"<QI{len(self.bounds)}d"
        if len(data) < struct.calcsize(form):
            raise SecureAggregationError("the scales of an exchange are too short")
        heaviest, devices, *bounds = struct.unpack_from(form, data)
        return replace(self, heaviest=heaviest, devices=devices, bounds=tuple(bounds))

    def quantized(self, values: Doubles, weight: int, draw: np.random.Generator) -> Words:
        """A device's values and weight as numbers of the ring."""
        if not 1 <= weight <= self.heaviest:
            raise SecureAggregationError("a weight is not within what the terms allow")
        numbers = np.empty(self.count, dtype=np.uint32)
        scaled = np.minimum(values, self._each)
        np.maximum(scaled, self._least, out=scaled)
        scaled += self._each
        beside = np.divide(weight / self.heaviest * self.levels, self._range)
        scaled *= beside
        scaled += draw.random(out=beside)
        np.minimum(np.floor(scaled, out=scaled), self.levels, out=scaled)
        numbers[: len(values)] = scaled
        if self.reports:
            numbers[len(values) : -1] = self._levels_of(values)
        numbers[-1] = weight
        return numbers

    def noisy(self, numbers: Words, seed: bytes) -> Words:
        """A device's numbers with its share of the noise on all but the weight, modulo 2^32."""
        assert self.noise is not None
        found = numbers.copy()
        found[:-1] += self.noise.draw(len(numbers) - 1, seed).astype(np.uint32)
        return found

    def _levels_of(self, values: Doubles) -> NDArray[np.int64]:
        """By part, 1 if a value is not far below the bound, and `devices` + 1 more beyond it."""
        bounds, sizes = np.array(self.bounds), np.array(self.sizes)
        starts, largest = np.cumsum(sizes) - sizes, np.zeros(len(sizes))
        some = np.flatnonzero(sizes)
        largest[some] = np.maximum.reduceat(np.abs(values), starts[some]) if len(some) else 0
        found = (largest > bounds / HEADROOM) + (largest > bounds) * (self.devices + 1)
        return found.astype(np.int64)

    def mean(self, total: Words, answered: int) -> Mean:
        """The mean out of the sum of the numbers of so many devices."""
        weight, parts = int(total[-1]), total[sum(self.sizes) : -1]
        if not answered <= weight <= answered * self.heaviest:
            raise SecureAggregationError(f"a sum of weights of {weight} is not an honest one")
        margin = self.noise.margin if self.noise else 0  # a sum may be as much below zero
        steps = (total[: sum(self.sizes)] + np.uint32(margin)).astype(np.float64) - margin
        values = steps * (self._range / self.levels * (self.heaviest / weight)) - self._each
        clipped, near = np.divmod(parts.astype(np.int64), self.devices + 1)
        return Mean(values, weight, list(near > 0), list(clipped > 0))

    def error(self, answered: int, weight: int) -> Doubles:
        """How far each mean can be from the mean of the unrounded values, if none is clipped."""
        return self._range / self.levels * self.heaviest * answered / weight


def followed(bound: float, near: bool, clipped: bool) -> float:
    """The bound of the next exchange, out of what devices say of this one's.

    >>> followed(8.0, near=True, clipped=True), followed(8.0, near=False, clipped=False)
    (32.0, 4.0)
    """
    if clipped:
        return bound * WIDER
    return bound if near else max(bound * NARROWER, 1e-30)
