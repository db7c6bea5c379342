"""Normalize and augment batches of images with PyTorch, on the device that they are on."""

import torch
from torch import Tensor

from fedtiny.data.transforms import Draws, Preparation


class Transform(Preparation):
    """The preparation of images, a batch at a time with PyTorch."""

    def normalise(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] as float32 with the data set's mean at 0 and its std at 1."""
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        unit = 1.0 if images.is_floating_point() else 255.0
        return images.to(torch.float32, copy=True).mul_(1 / (unit * std)).sub_(mean / std)

    def augment(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop, flip, normalize and cut out, each sample by its own draws."""
        height, width = images.shape[2:]
        moved = images
        if (pixels := self.kept_pixels(draws, height, width)) is not None:
            padded = torch.nn.functional.pad(images, (self.crop_padding,) * 4).flatten(2)
            index = torch.from_numpy(pixels).to(images.device).expand(-1, images.shape[1], -1)
            moved = padded.gather(2, index).view(images.shape)
        normal = self.normalise(moved)
        if (holes := self.holes(draws, height, width)) is not None:
            normal.mul_(torch.from_numpy(~holes).to(images.device))
        return normal
