"""Labelled images, and the pair of training and test images a run learns from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedtiny.data.array import Array
from fedtiny.data.choose import balanced_choice
from fedtiny.data.resize import resize
from fedtiny.errors import DataError
from fedtiny.randomness import generator


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images of one split: ``images`` is [N, C, H, W] and ``labels`` is [N].

    Images are uint8 (possibly memory-mapped), or float32 where they are normalised already.

    >>> images = np.zeros((3, 1, 8, 8), dtype=np.uint8)
    >>> ImageSet(images, np.array([0, 1, 1]), ("cat", "dog")).shape
    (1, 8, 8)
    """

    images: Array
    labels: Array
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        self._check_images()
        self._check_labels()

    def _check_images(self) -> None:
        if self.images.ndim != 4 or 0 in self.images.shape:
            shape = list(self.images.shape)
            raise DataError(f"images must be a filled [N, C, H, W] array, but have shape {shape}")
        if self.images.dtype not in (np.uint8, np.float32):
            raise DataError(f"images must be uint8 or float32, but are {self.images.dtype}")

    def _check_labels(self) -> None:
        if self.labels.shape != (len(self.images),):
            shape = list(self.labels.shape)
            raise DataError(f"{len(self.images)} images need as many labels, not shape {shape}")
        if self.labels.dtype != np.int64:
            raise DataError(f"labels must be int64, but are {self.labels.dtype}")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise DataError(
                f"labels must be from 0 to {len(self.classes) - 1}, "
                f"but go from {self.labels.min()} to {self.labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def subset(self, indices: Array | Sequence[int]) -> "ImageSet":
        """The images at these indices, in memory."""
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, images=np.asarray(self.images[chosen]), labels=self.labels[chosen])

    def limited(self, size: int | None, draw: np.random.Generator) -> "ImageSet":
        """At most ``size`` images, as even over the classes as they allow."""
        if size is not None and size < 1:
            raise DataError(f"a set can be limited to 1 image or more, not to {size}")
        if size is None or size >= len(self):
            return self
        return self.subset(balanced_choice(self.labels, size, draw))


@dataclass(frozen=True, eq=False)
class DataSet:
    """What a run learns from: two splits and how to normalise and augment them.

    ``mean`` and ``std`` are per channel in units of 0..1 for uint8 images; float images are
    taken as they are. ``flips`` says that a mirrored image keeps its class.
    """

    name: str
    train: ImageSet
    test: ImageSet
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flips: bool
    crop_padding: int

    def __post_init__(self) -> None:
        self._check_splits()
        self._check_constants()

    def _check_splits(self) -> None:
        train, test = self.train, self.test
        if train.classes != test.classes:
            raise DataError(f"train and test of {self.name} must have the same classes")
        if train.shape != test.shape or train.images.dtype != test.images.dtype:
            raise DataError(
                f"train and test of {self.name} must be alike, but are "
                f"{train.images.dtype} {train.shape} and {test.images.dtype} {test.shape}"
            )

    def _check_constants(self) -> None:
        channels = self.train.shape[0]
        if len(self.mean) != channels or len(self.std) != channels:
            raise DataError(
                f"{self.name} needs one mean and one std for each of {channels} channels"
            )
        if min(self.std) <= 0:
            raise DataError(f"the std of {self.name} must be above 0 for every channel")
        if self.crop_padding < 0:
            raise DataError(f"crop_padding must be 0 or more, not {self.crop_padding}")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return self.train.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.train.shape

    def resized(self, size: int) -> "DataSet":
        """The same images at ``size`` x ``size``, with the crop padding scaled along."""
        _, height, width = self.shape
        if height == width == size:
            return self
        train = replace(self.train, images=resize(self.train.images, size))
        test = replace(self.test, images=resize(self.test.images, size))
        padding = round(self.crop_padding * size / max(height, width))
        return replace(self, train=train, test=test, crop_padding=padding)

    def limited(self, train: int | None, test: int | None, seed: int) -> "DataSet":
        """A seeded subset of at most so many images, as even over the classes as they allow."""
        return replace(
            self,
            train=self.train.limited(train, generator(seed, "limit train")),
            test=self.test.limited(test, generator(seed, "limit test")),
        )
