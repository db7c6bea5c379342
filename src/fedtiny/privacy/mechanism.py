"""The Gaussian mechanism: clipped vectors of devices, one sum, noise on it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, fsum, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ConfigError
from fedtiny.randomness import generator

Doubles = NDArray[np.float64]
CLIPS = 1e-30, 1e30
"""Of a clip below these the square is zero at last, and then vectors of any norm are within it."""
BIT_NOISE = 10.0
"""Noise multiplier of the bits, as a multiple of a round's: they take a hundredth of 1/noise^2."""


@dataclass(frozen=True)
class Part:
    """Some values of a device's vector; in its norm they count `weight` times."""

    values: Doubles
    weight: float = 1.0


@dataclass(frozen=True)
class Mechanism:
    """How the replies to one question become one; `number` tells the questions of a run apart."""

    clip: float
    """Largest norm of a device's vector; infinity does not clip."""
    noise_multiplier: float
    """That of the whole release: of the sum and of the bits together."""
    asked: float
    """How many devices are expected; the sum is divided by it, whoever answers."""
    seed: int
    round: int
    number: int
    counts_bits: bool = False
    """Whether it is counted, under noise, how many vectors are within the clip."""
    frozen: bool = False
    """Whether batch norm leaves its statistics as they were sent: they get no noise."""
    shared_by: tuple[int, float] | None = None
    """If devices add the noise in shares: the neighbors and the threshold of their secure sum, from
    which it follows how many are in it at least."""

    def __post_init__(self) -> None:
        if self.clip != inf and not CLIPS[0] <= self.clip <= CLIPS[1]:
            raise ConfigError(
                f"a clip of {self.clip:g} is not in {CLIPS[0]:g} to {CLIPS[1]:g}; "
                "give another --privacy.clip"
            )

    @property
    def is_shared(self) -> bool:
        """Whether devices add the noise, and the server none."""
        return self.shared_by is not None and self.noise_multiplier > 0

    def to_plain(self) -> dict[str, Any]:
        """As devices are told it; the seed stays with the server."""
        return asdict(self) | {"seed": 0}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Mechanism":
        """What JSON of all fields says."""
        told: dict[str, Any] = {
            name: tuple(own) if isinstance(own, list) else own for name, own in plain.items()
        }
        return cls(**told)

    @property
    def sum_noise(self) -> float:
        """Standard deviation of the noise on the sum, over the clip.

        With bits, whose noise is as in Andrew et al., Theorem 1, it is a little larger.

        >>> Mechanism(1.0, 2.0, 10, 0, 0, 0).sum_noise
        2.0
        >>> round(Mechanism(1.0, 2.0, 10, 0, 0, 0, counts_bits=True).sum_noise, 4)
        2.0101
        """
        share = BIT_NOISE**-2 if self.counts_bits else 0.0
        return self.noise_multiplier / sqrt(1 - share)

    @property
    def bit_noise(self) -> float:
        """Standard deviation of the noise on the sum of the bits, each of which is 1/2 or -1/2."""
        return BIT_NOISE * self.noise_multiplier / 2

    def factor(self, parts: Sequence[Part]) -> float:
        """What a device's whole vector is multiplied by, so that its norm is at most the clip.

        >>> halves = [Part(np.array([3.0])), Part(np.array([8.0]), weight=0.5)]
        >>> Mechanism(2.5, 1.0, 10, 0, 0, 0).factor(halves)
        0.5
        """
        if self.clip == inf:
            return 1.0
        length = norm(parts)
        return 1.0 if length <= self.clip else self.clip / length

    def noise(self, purpose: str, size: int, weight: float = 1.0) -> Doubles:
        """Noise on a mean of values that count so many times in the norm."""
        if not self.noise_multiplier or self.is_shared:
            return np.zeros(size)
        deviation = self.sum_noise * self.clip / (weight * self.asked)
        return deviation * self._draw(purpose).standard_normal(size)

    def share_seed(self, device: int, message: bytes) -> bytes:
        """What a simulated device draws its share of the noise by.

        A run that is resumed draws the same for the same message, and no other message gets it. A
        real device has a secret of its own in place of the seed.
        """
        named = f"{self.seed:x} {self.round} {self.number} {device} ".encode()
        return hashlib.sha256(b"share of noise " + named + message).digest()

    def share_within(self, within: float, answered: int, purpose: str) -> float:
        """The share of vectors within the clip, under noise; who did not answer counts as half."""
        noise = self.bit_noise * float(self._draw(purpose).standard_normal())
        if self.is_shared:
            noise = 0.0  # it is in what devices say
        return (within - answered / 2 + noise) / self.asked + 0.5

    def _draw(self, purpose: str) -> np.random.Generator:
        return generator(self.seed, f"privacy {self.number} {purpose}", round=self.round)


def norm(parts: Sequence[Part]) -> float:
    """The Euclidean norm of all parts together."""
    return sqrt(fsum(part.weight**2 * float(np.square(part.values).sum()) for part in parts))


def adapted(clip: float, share: float, quantile: float, rate: float) -> float:
    """The next clip, by the share of vectors within this one (Andrew et al., 2021).

    >>> round(adapted(1.0, 1.0, 0.5, 0.2), 4), adapted(2.0, 0.5, 0.5, 0.2)
    (0.9048, 2.0)
    """
    return clip * exp(-rate * (share - quantile))
