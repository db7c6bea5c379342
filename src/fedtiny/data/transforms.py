"""What is done to images before a network sees them, and the random numbers it takes.

The order is torchvision's: pad the raw image with black, crop, flip, normalize, cut out. Random
numbers come in as :class:`Draws`, so the same draws give the same images anywhere.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.images import Array, DataSet, Layout

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Draws:
    """Random numbers for each of n samples, drawn before it is known which batch it is in."""

    crops: Array  # [n, 2] row and column where the crop begins in the padded image
    flips: Array  # [n] whether the image is mirrored
    centres: Array  # [n, 2] center of the cut-out as parts of height and width

    def __len__(self) -> int:
        return len(self.flips)

    def __getitem__(self, index: slice | Array) -> "Draws":
        return Draws(self.crops[index], self.flips[index], self.centres[index])


@dataclass(frozen=True)
class Preparation:
    """How images of one data set are normalized and, for training, augmented."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_padding: int = 0
    flips: bool = False
    cutout: int = 0
    layout: Layout = "NCHW"

    @classmethod
    def of(cls, data: DataSet, augment: bool = True, cutout: int = 0) -> Self:
        """What fits this data set; ``cutout`` is a side in pixels, 0 for none."""
        if not augment or data.layout != "NCHW":
            return cls(data.mean, data.std, layout=data.layout)
        return cls(data.mean, data.std, data.crop_padding, data.flips, cutout)

    def draws(self, generator: np.random.Generator, n: int) -> Draws:
        """Draw for n samples; the same numbers are drawn whether or not each is used."""
        crops = generator.integers(0, 2 * self.crop_padding + 1, size=(n, 2))
        mirrored = generator.random(n) < 0.5
        return Draws(crops, mirrored & self.flips, generator.random((n, 2)))

    def kept_pixels(self, draws: Draws, height: int, width: int) -> Array | None:
        """The flat positions [n, 1, H * W] in the padded image that crop and flip keep, if any."""
        if not (self.crop_padding or self.flips):
            return None
        across = np.arange(width)
        rows = draws.crops[:, :1] + np.arange(height)
        columns = draws.crops[:, 1:] + np.where(draws.flips[:, None], width - 1 - across, across)
        pixels: Array = rows[:, :, None] * (width + 2 * self.crop_padding) + columns[:, None, :]
        return pixels.reshape(len(draws), 1, -1)

    def holes(self, draws: Draws, height: int, width: int) -> Array | None:
        """Where [n, 1, H, W] each sample is cut out: a square around its center, if any."""
        if not self.cutout:
            return None
        starts = np.floor(draws.centres * (height, width)).astype(np.int64) - self.cutout // 2
        rows = np.arange(height) - starts[:, :1]
        columns = np.arange(width) - starts[:, 1:]
        down, across = ((line >= 0) & (line < self.cutout) for line in (rows, columns))
        return down[:, None, :, None] & across[:, None, None, :]


class ArrayTransform(Preparation):
    """The preparation of images with NumPy, a batch at a time: to the bit what PyTorch gives."""

    def normalise(self, images: Array) -> Floats:
        """Images [N, C, H, W] as float32 with the data set's mean at 0 and its std at 1."""
        std = np.array(self.std, dtype=np.float32)[:, None, None]
        mean = np.array(self.mean, dtype=np.float32)[:, None, None]
        unit = np.float32(1.0 if images.dtype.kind == "f" else 255.0)
        normal = images.astype(np.float32)
        normal *= np.float32(1) / (unit * std)
        normal -= mean / std
        return normal

    def augment(self, images: Array, draws: Draws) -> Floats:
        """Crop, flip, normalize and cut out, each sample by its own draws."""
        height, width = images.shape[2:]
        moved = images
        if (pixels := self.kept_pixels(draws, height, width)) is not None:
            side = (self.crop_padding, self.crop_padding)
            padded = np.pad(images, ((0, 0), (0, 0), side, side)).reshape(*images.shape[:2], -1)
            moved = np.take_along_axis(padded, pixels, axis=2).reshape(images.shape)
        normal = self.normalise(moved)
        if (holes := self.holes(draws, height, width)) is not None:
            normal *= ~holes
        return normal
