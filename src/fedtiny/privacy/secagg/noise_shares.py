"""Noise in shares: each device adds a part, so that nobody ever sees a sum without noise.

The distributed discrete Gaussian (Kairouz, Liu and Steinke, 2021). A share has the standard
deviation 2^bits, in steps of the ring, and the clip is as many steps as make `least` shares the
noise that was asked for; a sum of more devices has more. What wraps around is a matter of accuracy,
not of privacy: with a margin of twelve deviations it never does (the chance is below 1e-30).
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, sqrt

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import SecureAggregationError
from fedtiny.privacy.secagg import discrete_gaussian

RING = 2**32
TAIL = 12
LEAST_BITS = 6
"""Shares of 64 steps and more: their sum differs from a discrete Gaussian by less than e^-40,000
(the same paper, theorem 5), and so does what it tells from what a Gaussian tells."""


@dataclass(frozen=True)
class NoiseShares:
    """The share of each of so many devices, of which at least `least` are in any sum."""

    multiplier: float
    """Standard deviation of the noise on a sum of `least` devices, over the clip."""
    devices: int
    least: int

    @cached_property
    def bits(self) -> int:
        """The deviation of a share is 2^bits steps: as large as fits the ring."""
        for bits in range(discrete_gaussian.MAX_BITS, LEAST_BITS - 1, -1):
            if 2 * (self._clip(bits) * self.devices + self._margin(bits)) < RING:
                return bits
        raise SecureAggregationError(
            f"a noise multiplier of {self.multiplier:g} in shares of {self.devices} devices does "
            "not fit 32 bits: ask fewer devices, or use --privacy.noise server"
        )

    def _clip(self, bits: int) -> int:
        """Steps of the clip; rounded down, so that the noise is never less than asked for."""
        return floor((1 << bits) * sqrt(self.least) / self.multiplier * (1 - 1e-12))

    def _margin(self, bits: int) -> int:
        return ceil(TAIL * (1 << bits) * sqrt(self.devices))

    @property
    def levels(self) -> int:
        """Steps from the least value to the largest, of twice the clip."""
        return 2 * self._clip(self.bits)

    @property
    def margin(self) -> int:
        """How far below zero or above its largest value noise may take a sum, in steps."""
        return self._margin(self.bits)

    def draw(self, count: int, seed: bytes) -> NDArray[np.int64]:
        """A device's share on so many numbers; a seed serves for one message."""
        return discrete_gaussian.draw(count, self.bits, seed)
