"""Images that lie on the GPU once, and batches cut out of them there."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from fedtiny.data import ImageSet
from fedtiny.data.images import input_shape
from fedtiny.data.transforms import Draws, Preparation

COLUMNS = 6  # of a plan: sample, crop (row, column), mirrored, corner of the hole (row, column)


class Images:
    """An image set as it was given (bytes), padded for cropping, pixels together."""

    def __init__(
        self,
        data: ImageSet,
        preparation: Preparation,
        device: torch.device,
        channels_last: bool = True,
    ) -> None:
        self.preparation = preparation
        self.channels_last = channels_last
        self.padding = preparation.crop_padding
        images = torch.from_numpy(data.images).to(device)
        self.pixels = F.pad(images, (self.padding,) * 4).permute(0, 2, 3, 1).contiguous()
        self.labels = torch.from_numpy(data.labels).to(device)
        self.shape = data.shape
        self.height, self.width = data.shape[1:]
        unit = 1.0 if images.is_floating_point() else 255.0
        std = torch.tensor(preparation.std, device=device)
        self.scale = 1 / (unit * std)
        self.shift = torch.tensor(preparation.mean, device=device) / std

    def plan(self, samples: NDArray[np.int64], draws: Draws) -> NDArray[np.int32]:
        """A row for each sample: which image, and what is done to it."""
        side = self.preparation.cutout
        corners = np.floor(draws.centres * (self.height, self.width)).astype(np.int64) - side // 2
        columns = (samples[:, None], draws.crops, draws.flips[:, None], corners)
        return np.concatenate(columns, axis=1).astype(np.int32)

    def cut(self, plan: Tensor) -> tuple[Tensor, Tensor]:
        """The batch that a plan describes: crop, mirror, normalise, cut out."""
        sample, row, column, mirrored = (plan[:, i].long() for i in range(4))
        down = torch.arange(self.height, device=plan.device)
        across = torch.arange(self.width, device=plan.device)
        rows = row[:, None] + down
        turned = torch.where(mirrored[:, None] > 0, self.width - 1 - across, across)
        columns = column[:, None] + turned
        pixels = self.pixels[sample[:, None, None], rows[:, :, None], columns[:, None, :]]
        images = self._normalised(pixels)
        if self.preparation.cutout:
            hole = (
                self._inside(down, plan[:, 4])[:, :, None]
                & self._inside(across, plan[:, 5])[:, None, :]
            )
            images = images.masked_fill(hole[..., None], 0.0)
        return self._laid_out(images), self.labels[sample]

    def _inside(self, line: Tensor, start: Tensor) -> Tensor:
        offset = line - start[:, None]
        return (offset >= 0) & (offset < self.preparation.cutout)

    def _normalised(self, pixels: Tensor) -> Tensor:
        return pixels.to(torch.float32) * self.scale - self.shift

    def plain(self, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Some images as the network sees them in testing, with their labels."""
        p, (height, width) = self.padding, (self.height, self.width)
        pixels = self.pixels[samples, p : p + height, p : p + width]
        return self._laid_out(self._normalised(pixels)), self.labels[samples]

    def _laid_out(self, images: Tensor) -> Tensor:
        """As a network takes them, channels before pixels, in the wanted order of memory."""
        turned = images.permute(0, 3, 1, 2)
        if self.preparation.layout != "NCHW":
            return turned.reshape(len(turned), *input_shape(self.preparation.layout, self.shape))
        return turned if self.channels_last else turned.clone(memory_format=torch.contiguous_format)


class ImageStore:
    """The image sets of a run, each brought to the GPU once for all lanes."""

    def __init__(
        self,
        sets: Sequence[ImageSet],
        of: Preparation,
        device: torch.device,
        channels_last: bool = True,
    ) -> None:
        unique = {id(data): data for data in sets}
        self._sets = unique  # held, so that an identity is not given to another set
        self._images = {
            key: Images(data, of, device, channels_last) for key, data in unique.items()
        }

    def __getitem__(self, data: ImageSet) -> Images:
        return self._images[id(data)]
