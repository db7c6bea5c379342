"""Labelled images, and the pair of training and test images a run learns from.

Sequences [C, T] are held as images of one row (C, 1, T), rows of a table [F] as (F, 1, 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fedtiny.data.partition import Array as Array
from fedtiny.data.partition import Partition
from fedtiny.errors import DataError
from fedtiny.randomness import generator

CHUNK = 1024  # images worked on at once: float copies stay small, a memory-mapped set on disk
Layout = Literal["NCHW", "NCT", "NF"]
"""What a network reads: batches of images, of sequences, or of rows of a table."""


def own_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as its owner knows it, of a sample that is held as (C, H, W).

    >>> own_shape((6, 1, 128)), own_shape((20, 1, 1)), own_shape((3, 8, 8))
    ((6, 128), (20,), (3, 8, 8))
    """
    rows, columns = shape[1:]
    lines: Layout = "NF" if columns == 1 else "NCT"
    return input_shape(lines if rows == 1 else "NCHW", shape)


def input_shape(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one sample as a network reads it, of one that is held as (C, H, W).

    >>> input_shape("NCT", (6, 1, 128)), input_shape("NF", (20, 1, 1))
    ((6, 128), (20,))
    """
    channels, *sides = shape
    return {"NCHW": (channels, *sides), "NCT": (channels, *sides[1:]), "NF": (channels,)}[layout]


TEST_SHARE = 0.2  # of a set that comes without a test split
SPLIT_SEED = 0  # such a set is split alike in every run


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Labelled images of one split; sequences and rows of tables are held as images too.

    Example:
        >>> images = np.zeros((3, 1, 8, 8), dtype=np.uint8)
        >>> ImageSet(images, np.array([0, 1, 1]), ("cat", "dog")).shape
        (1, 8, 8)
    """

    images: Array
    """[N, C, H, W], uint8 (perhaps memory-mapped), or float32 if they are normalized already."""
    labels: Array
    """[N], int64: the class of each image by its number."""
    classes: tuple[str, ...]
    """The names of the classes, in the order of the labels."""

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or 0 in self.images.shape:
            shape = list(self.images.shape)
            raise DataError(f"images must be a filled [N, C, H, W] array, but have shape {shape}")
        if self.images.dtype not in (np.uint8, np.float32):
            raise DataError(f"images must be uint8 or float32, but are {self.images.dtype}")
        if self.labels.shape != (len(self.images),):
            shape = list(self.labels.shape)
            raise DataError(f"{len(self.images)} samples need as many labels, not shape {shape}")
        if self.labels.dtype != np.int64:
            raise DataError(f"labels must be int64, but are {self.labels.dtype}")
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise DataError(
                f"labels must be from 0 to {len(self.classes) - 1}, "
                f"but go from {self.labels.min()} to {self.labels.max()}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape))
        return (
            f"<ImageSet: {len(self):,} samples of {shape} {self.images.dtype}, "
            f"{len(self.classes)} classes>"
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def subset(self, indices: Array | Sequence[int]) -> "ImageSet":
        """The images at these indices, in memory.

        Args:
            indices: Which images, in which order.

        Returns:
            The images with their labels.
        """
        chosen = np.asarray(indices, dtype=np.int64)
        return replace(self, images=np.asarray(self.images[chosen]), labels=self.labels[chosen])

    def limited(self, size: int | None, draw: np.random.Generator) -> "ImageSet":
        """At most so many images, as even over the classes as they allow.

        Args:
            size: How many; None is all.
            draw: What chooses them.

        Returns:
            The images with their labels.
        """
        chosen = self.limit(size, draw)
        return self if chosen is None else self.subset(chosen)

    def limit(self, size: int | None, draw: np.random.Generator) -> Array | None:
        """Which images :meth:`limited` would keep.

        Args:
            size: How many; None is all.
            draw: What chooses them.

        Returns:
            Their indices; None is all.
        """
        if size is not None and size < 1:
            raise DataError(f"a set can be limited to 1 sample or more, not to {size}")
        if size is None or size >= len(self):
            return None
        return balanced_choice(self.labels, size, draw)


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """What a run learns from: two splits and how to normalize and augment them.

    :func:`fedtiny.from_arrays` and :func:`fedtiny.from_torch` make one of your own data,
    :func:`fedtiny.data.load` one of a name.

    Example:
        >>> digits = fedtiny.data.load("digits")
        >>> digits
        <DataSet 'digits': 1,438 training and 359 test samples of 1x8x8, 10 classes>
        >>> digits.train.images.shape
        (1438, 1, 8, 8)
    """

    name: str
    """What the data are called."""
    train: ImageSet
    """The training samples, which are spread over the devices."""
    test: ImageSet
    """The test samples, which the server measures with."""
    mean: tuple[float, ...]
    """Mean of each channel, in units of 0 to 1 for uint8 images."""
    std: tuple[float, ...]
    """Standard deviation of each channel, in the same units."""
    flips: bool
    """Whether a mirrored image keeps its class."""
    crop_padding: int
    """Pixels of padding before images are cropped at random; 0 is off."""
    layout: Layout = "NCHW"
    """How a network reads a batch: images, sequences (NCT), or rows of a table (NF)."""
    partition: Partition | None = None
    """Which training samples are whose, if that is known."""

    def __post_init__(self) -> None:
        train, test = self.train, self.test
        if self.partition is not None and self.partition.end > len(train):
            raise DataError(
                f"the partition of {self.name} names sample {self.partition.end - 1}, but there "
                f"are {len(train)} training samples, numbered from 0"
            )
        if train.classes != test.classes:
            raise DataError(f"train and test of {self.name} must have the same classes")
        if train.shape != test.shape or train.images.dtype != test.images.dtype:
            raise DataError(
                f"train and test of {self.name} must be alike, but are "
                f"{self._described(train)} and {self._described(test)}"
            )
        channels = train.shape[0]
        if len(self.mean) != channels or len(self.std) != channels:
            raise DataError(
                f"{self.name} needs one mean and one std for each of {channels} channels"
            )
        if min(self.std) <= 0:
            raise DataError(f"the std of {self.name} must be above 0 for every channel")
        if self.crop_padding < 0:
            raise DataError(f"crop_padding must be 0 or more, not {self.crop_padding}")

    def _described(self, part: ImageSet) -> str:
        return f"{part.images.dtype} {input_shape(self.layout, part.shape)}"

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        devices = f", {len(self.partition)} devices" if self.partition else ""
        return (
            f"<DataSet {self.name!r}: {len(self.train):,} training and {len(self.test):,} test "
            f"samples of {shape}, {len(self.classes)} classes{devices}>"
        )

    @classmethod
    def measured(
        cls, name: str, train: ImageSet, test: ImageSet, flips: bool, crop_padding: int | None
    ) -> "DataSet":
        """With the training images' own mean and std.

        Args:
            name: What the data are called.
            train: The training samples.
            test: The test samples.
            flips: Whether a mirrored image keeps its class.
            crop_padding: Pixels of padding; None is an eighth of the size of uint8 images.

        Returns:
            The data set.
        """
        mean, std = channel_statistics(train.images)
        usual = max(train.shape[1:]) // 8 if train.images.dtype == np.uint8 else 0
        padding = usual if crop_padding is None else crop_padding
        return cls(name, train, test, mean, std, flips, padding)

    @classmethod
    def standardized(cls, name: str, train: ImageSet, test: ImageSet, layout: Layout) -> "DataSet":
        """Sequences or rows of a table: each channel has a mean of 0 and a std of 1 in training.

        Args:
            name: What the data are called.
            train: The training samples.
            test: The test samples.
            layout: How a network reads a batch.

        Returns:
            The data set.
        """
        means, stds = train.images.mean(axis=(0, 2, 3)), train.images.std(axis=(0, 2, 3))
        std = tuple(float(value) or 1.0 for value in stds)
        mean = tuple(float(value) for value in means)
        return cls(name, train, test, mean, std, flips=False, crop_padding=0, layout=layout)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the labels."""
        return self.train.classes

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return self.train.shape

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample as a network reads it."""
        return input_shape(self.layout, self.shape)

    def resized(self, size: int) -> "DataSet":
        """The same images at another size, with the crop padding scaled along.

        Args:
            size: Height and width.

        Returns:
            The data set.
        """
        _, height, width = self.shape
        if height == width == size:
            return self
        train = replace(self.train, images=resize(self.train.images, size))
        test = replace(self.test, images=resize(self.test.images, size))
        padding = round(self.crop_padding * size / max(height, width))
        return replace(self, train=train, test=test, crop_padding=padding)

    def validating(self, share: float, seed: int) -> "DataSet":
        """The same with a share of the training images in place of the test images.

        Args:
            share: How many of them.
            seed: What chooses them.

        Returns:
            The data set.
        """
        draw = generator(seed, "validation")
        kept, held_out = hold_out(self.train.labels, share, draw)
        return replace(self._training_on(kept), test=self.train.subset(held_out))

    def limited(self, train: int | None, test: int | None, seed: int) -> "DataSet":
        """A seeded subset, as even over the classes as they allow.

        Args:
            train: Most training images; None is all.
            test: Most test images; None is all.
            seed: What chooses them.

        Returns:
            The data set.
        """
        chosen = self.train.limit(train, generator(seed, "limit train"))
        fewer = self if chosen is None else self._training_on(chosen)
        return replace(fewer, test=self.test.limited(test, generator(seed, "limit test")))

    def _training_on(self, chosen: Array) -> "DataSet":
        """The same with these training samples, whosever they are."""
        own = None if self.partition is None else self.partition.within(chosen)
        return replace(self, train=self.train.subset(chosen), partition=own)


def channel_statistics(images: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel in units of 0..1; 0 and 1 for float images, left as they are.

    >>> pair = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)
    >>> channel_statistics(pair)
    ((0.5,), (0.5,))
    """
    channels = images.shape[1]
    if images.dtype != np.uint8:
        return (0.0,) * channels, (1.0,) * channels
    counts = np.zeros((channels, 256), dtype=np.int64)
    for start in range(0, len(images), CHUNK):
        for channel in range(channels):
            values = images[start : start + CHUNK, channel].reshape(-1)
            counts[channel] += np.bincount(values, minlength=256)
    return tuple(zip(*map(_mean_and_std, counts), strict=True))  # type: ignore[return-value]


def _mean_and_std(counts: Array) -> tuple[float, float]:
    values = np.arange(256) / 255
    mean = float(np.average(values, weights=counts))
    variance = float(np.average((values - mean) ** 2, weights=counts))
    return mean, variance**0.5 or 1.0  # a channel of one value is left unscaled


def resize(images: Array, size: int) -> Array:
    """Images [N, C, H, W] at ``size`` x ``size``, of the same dtype.

    >>> resize(np.full((1, 1, 2, 2), 7, dtype=np.uint8), 3)[0, 0].tolist()
    [[7, 7, 7], [7, 7, 7], [7, 7, 7]]
    """
    if size < 1:
        raise DataError(f"images can be resized to 1 pixel or more, not to {size}")
    rows = bilinear_weights(images.shape[2], size)
    columns = bilinear_weights(images.shape[3], size)
    resized = np.empty((*images.shape[:2], size, size), dtype=images.dtype)
    for start in range(0, len(images), CHUNK):
        exact = rows @ images[start : start + CHUNK].astype(np.float32) @ columns.T
        in_range = np.clip(np.rint(exact), 0, 255) if images.dtype == np.uint8 else exact
        resized[start : start + CHUNK] = in_range
    return resized


def bilinear_weights(old: int, new: int) -> Array:
    """The [new, old] matrix that resizes a line of pixels, pixel centers at half steps."""
    scale = old / new
    centers = (np.arange(new) + 0.5) * scale - 0.5
    distances = np.abs(np.arange(old) - centers[:, None]) / max(scale, 1.0)
    weights = np.maximum(1.0 - distances, 0.0)
    normal: Array = weights / weights.sum(axis=1, keepdims=True)
    return normal.astype(np.float32)


def balanced_choice(labels: Array, size: int, draw: np.random.Generator) -> Array:
    """Sorted indices of ``size`` samples, as even over the classes as they allow.

    >>> labels = np.array([0, 0, 0, 0, 0, 1, 2, 2])
    >>> chosen = balanced_choice(labels, 5, np.random.default_rng(0))
    >>> np.bincount(labels[chosen]).tolist()
    [2, 1, 2]
    """
    order, ranks = _shuffled(labels, draw)
    by_rank = np.argsort(ranks, kind="stable")
    return np.sort(order[by_rank[:size]])


def hold_out(labels: Array, share: float, draw: np.random.Generator) -> tuple[Array, Array]:
    """Sorted indices to train on and to test on, with ``share`` of every class to test on.

    A class of one sample is trained on.

    >>> train, test = hold_out(np.repeat([0, 1], [5, 10]), 0.2, np.random.default_rng(0))
    >>> len(train), len(test)
    (12, 3)
    """
    order, ranks = _shuffled(labels, draw)
    counts = np.bincount(labels)
    test_counts = np.clip(np.rint(counts * share), 1, np.maximum(counts - 1, 0)) * (counts > 1)
    held_out = ranks < test_counts[labels[order]]
    return np.sort(order[~held_out]), np.sort(order[held_out])


def _shuffled(labels: Array, draw: np.random.Generator) -> tuple[Array, Array]:
    """A random order, and how many samples of the same class come before each sample in it."""
    order = draw.permutation(len(labels))
    by_class = np.argsort(labels[order], kind="stable")
    _, starts, counts = np.unique(labels[order[by_class]], return_index=True, return_counts=True)
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[by_class] = np.arange(len(labels)) - np.repeat(starts, counts)
    return order, ranks
