"""What is done to images before a network sees them, and the random numbers it takes."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from fedtiny.data.array import Array
from fedtiny.data.images import DataSet


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for each of n samples, drawn before it is known which batch it is in."""

    crops: Array  # [n, 2] row and column where the crop begins in the padded image
    flips: Array  # [n] whether the image is mirrored
    centres: Array  # [n, 2] centre of the cut-out as parts of height and width

    def __len__(self) -> int:
        return len(self.flips)

    def __getitem__(self, index: slice | Array) -> "Draws":
        return Draws(self.crops[index], self.flips[index], self.centres[index])


@dataclass(frozen=True)
class Preparation:
    """How images of one data set are normalised and, for training, augmented."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_padding: int = 0
    flips: bool = False
    cutout: int = 0

    @classmethod
    def of(cls, data: DataSet, augment: bool = True, cutout: int = 0) -> Self:
        """What fits this data set; ``cutout`` is a side in pixels, 0 for none."""
        if not augment:
            return cls(data.mean, data.std)
        return cls(data.mean, data.std, data.crop_padding, data.flips, cutout)

    def draws(self, generator: np.random.Generator, n: int) -> Draws:
        """Draw for n samples; the same numbers are drawn whether or not each is used."""
        crops = generator.integers(0, 2 * self.crop_padding + 1, size=(n, 2))
        mirrored = generator.random(n) < 0.5
        return Draws(crops, mirrored & self.flips, generator.random((n, 2)))
