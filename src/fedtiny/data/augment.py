"""Normalise and augment whole batches of images on the device they are on.

The order is torchvision's: pad the raw image with black, crop, flip, normalise, cut out.
Random numbers come in as :class:`Draws`, so the same draws give the same images anywhere.
"""

import numpy as np
import torch
from torch import Tensor

from fedtiny.data.draws import Draws, Preparation


class Transform(Preparation):
    """The preparation of images, a batch at a time with PyTorch."""

    def normalise(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] as float32 with the data set's mean at 0 and its std at 1."""
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        unit = 1.0 if images.is_floating_point() else 255.0
        return images.to(torch.float32, copy=True).mul_(1 / (unit * std)).sub_(mean / std)

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop, flip, normalise and cut out, each sample by its own draws."""
        moved = images
        if self.crop_padding or self.flips:
            moved = _cropped_and_flipped(images, draws, self.crop_padding)
        normal = self.normalise(moved)
        return _cut_out(normal, draws, self.cutout) if self.cutout else normal


def _cropped_and_flipped(images: Tensor, draws: Draws, padding: int) -> Tensor:
    n, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    rows, columns = _window(draws, height, width, images.device)
    pixels = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    index = pixels.view(n, 1, -1).expand(n, channels, -1)
    return padded.flatten(2).gather(2, index).view(images.shape)


def _window(draws: Draws, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The rows [n, H] and columns [n, W] of the padded image that each sample keeps."""
    crops = torch.from_numpy(draws.crops).to(device)
    flips = torch.from_numpy(draws.flips).to(device)
    across = torch.arange(width, device=device)
    rows = crops[:, :1] + torch.arange(height, device=device)
    columns = crops[:, 1:] + torch.where(flips[:, None], width - 1 - across, across)
    return rows, columns


def _cut_out(images: Tensor, draws: Draws, side: int) -> Tensor:
    """Set a square around each sample's centre to 0, cut off at the border."""
    height, width = images.shape[2:]
    starts = np.floor(draws.centres * (height, width)).astype(np.int64) - side // 2
    starts_here = torch.from_numpy(starts).to(images.device)
    rows = torch.arange(height, device=images.device) - starts_here[:, :1]
    columns = torch.arange(width, device=images.device) - starts_here[:, 1:]
    hole = _inside(rows, side)[:, :, None] & _inside(columns, side)[:, None, :]
    return images.mul_(~hole[:, None])


def _inside(offsets: Tensor, side: int) -> Tensor:
    return (offsets >= 0) & (offsets < side)
