"""Normalise and augment whole batches of images with NumPy: to the bit what PyTorch gives."""

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.array import Array
from fedtiny.data.draws import Draws, Preparation

Floats = NDArray[np.float32]


class ArrayTransform(Preparation):
    """The preparation of images, a batch at a time with NumPy."""

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
        """Crop, flip, normalise and cut out, each sample by its own draws."""
        moved = images
        if self.crop_padding or self.flips:
            moved = _cropped_and_flipped(images, draws, self.crop_padding)
        normal = self.normalise(moved)
        return _cut_out(normal, draws, self.cutout) if self.cutout else normal


def _cropped_and_flipped(images: Array, draws: Draws, padding: int) -> Array:
    n, channels, height, width = images.shape
    side = (padding, padding)
    padded = np.pad(images, ((0, 0), (0, 0), side, side))
    across = np.arange(width)
    rows = draws.crops[:, :1] + np.arange(height)
    columns = draws.crops[:, 1:] + np.where(draws.flips[:, None], width - 1 - across, across)
    pixels = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    flat = padded.reshape(n, channels, -1)
    moved: Array = np.take_along_axis(flat, pixels.reshape(n, 1, -1), axis=2)
    return moved.reshape(images.shape)


def _cut_out(images: Floats, draws: Draws, side: int) -> Floats:
    """Set a square around each sample's centre to 0, cut off at the border."""
    height, width = images.shape[2:]
    starts = np.floor(draws.centres * (height, width)).astype(np.int64) - side // 2
    rows = np.arange(height) - starts[:, :1]
    columns = np.arange(width) - starts[:, 1:]
    hole = _inside(rows, side)[:, :, None] & _inside(columns, side)[:, None, :]
    images *= ~hole[:, None]
    return images


def _inside(offsets: Array, side: int) -> Array:
    return (offsets >= 0) & (offsets < side)
