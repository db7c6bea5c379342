"""Data sets of arrays, and of any map-style torch Dataset."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from fedtiny.data.images import Array, DataSet, ImageSet, Layout
from fedtiny.data.partition import Partition
from fedtiny.errors import DataError

if TYPE_CHECKING:
    from torch.utils.data import Dataset

MAX_CLASSES = 100_000
MAX_VALUE = 1e18  # of a sample: its square must be a float32
CHANNELS = (1, 2, 3, 4)
ArrayLayout = Literal["NCHW", "NHWC", "NHW", "NCT", "NTC", "NF"]
"""What the dimensions of an array are: sample, channel, height, width, time, feature."""
HELD_AS: dict[str, tuple[Layout, tuple[int, ...]]] = {
    "NCHW": ("NCHW", (0, 1, 2, 3)),
    "NHWC": ("NCHW", (0, 3, 1, 2)),
    "NHW": ("NCHW", (0, 1, 2)),
    "NCT": ("NCT", (0, 1, 2)),
    "NTC": ("NCT", (0, 2, 1)),
    "NF": ("NF", (0, 1)),
}
"""For each, how a network reads it, and the order of its dimensions then."""
CHOICES = {
    2: "layout='NF' for rows of a table",
    3: "layout='NCT' or 'NTC' for sequences, layout='NHW' for gray images",
    4: "layout='NCHW' or 'NHWC' for images with their channels first or last",
}
"""What an array of so many dimensions may be."""


def from_arrays(
    train: tuple[ArrayLike, ArrayLike],
    test: tuple[ArrayLike, ArrayLike],
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    *,
    layout: ArrayLayout | None = None,
    device_ids: ArrayLike | None = None,
    flips: bool = False,
    crop_padding: int | None = None,
) -> DataSet:
    """A data set of arrays: images, sequences, or rows of a table.

    Images of whole numbers from 0 to 255 are normalized by their measured mean and std; images of
    floats are taken as they are. Sequences and tables are normalized by the mean and std of each
    channel or column.

    Args:
        train: The training samples and their labels, whole numbers from 0.
        test: The test samples and their labels.
        classes: Names of the classes, in the order of the labels; default: their numbers.
        name: What the data are called in the run folder.
        layout: What the dimensions are: `NCHW`, `NHWC` or `NHW` of images, `NCT` or `NTC` of
            sequences, `NF` of a table. Without it, four dimensions of which either the second or
            the last is one to four channels, and three of square images of whole numbers from 0 to
            255, are images; what could be two things is refused.
        device_ids: For each training sample the device, or user, that has it.
        flips: Whether a mirrored image keeps its class, so that images may be mirrored in training.
        crop_padding: Pixels of padding before images are cropped at random; default: an eighth of
            their size, and 0 for floats.

    Returns:
        The data set, for `data=` of :func:`fedtiny.run`.

    Raises:
        DataError: The arrays do not fit each other, or do not say what they are.

    Example:
        >>> import numpy as np
        >>> images, labels = np.zeros((4, 8, 8), dtype=np.uint8), [0, 1, 2, 1]
        >>> fedtiny.from_arrays((images, labels), (images, labels)).classes
        ('0', '1', '2')
        >>> motion = np.zeros((4, 6, 128), dtype=np.float32)
        >>> fedtiny.from_arrays((motion, labels), (motion, labels), layout="NCT").input_shape
        (6, 128)
    """
    pairs = [as_held(pair, layout) for pair in (train, test)]
    named = _class_names(classes, *(labels for _, labels in pairs))
    train_set, test_set = (ImageSet(samples, labels, named) for samples, labels in pairs)
    reads = HELD_AS[layout][0] if layout else "NCHW"
    if reads == "NCHW":
        data = DataSet.measured(name, train_set, test_set, flips, crop_padding)
    elif flips or crop_padding:
        raise DataError("flips and crop_padding are for images; leave them out with sequences")
    else:
        data = DataSet.standardized(name, train_set, test_set, reads)
    return data if device_ids is None else _owned(data, device_ids)


def _owned(data: DataSet, device_ids: ArrayLike) -> DataSet:
    """The same with its training samples shared out by whose they are."""
    ids = np.asarray(device_ids)
    if ids.shape[:1] != (len(data.train),):
        raise DataError(
            f"device_ids must name one device for each of {len(data.train)} training samples, but "
            f"have shape {list(ids.shape)}"
        )
    return replace(data, partition=Partition.by_ids(ids))


def from_torch(
    train: "Dataset[Any]",
    test: "Dataset[Any]",
    classes: Sequence[str] | None = None,
    name: str = "torch",
    *,
    layout: ArrayLayout | None = None,
    device_ids: ArrayLike | None = None,
    flips: bool = False,
    crop_padding: int | None = None,
) -> DataSet:
    """A data set of two map-style torch Datasets that yield (sample, label).

    Each sample is read once, so random transforms belong into the run's augmentation
    (`data.augment`, `data.cutout`) and not into the Dataset.

    Args:
        train: The training samples: PIL images, tensors or arrays, each with its label.
        test: The test samples.
        classes: Names of the classes; default: `train.classes`, or else their numbers.
        name: What the data are called in the run folder.
        layout: As for :func:`fedtiny.from_arrays`.
        device_ids: As for :func:`fedtiny.from_arrays`.
        flips: As for :func:`fedtiny.from_arrays`.
        crop_padding: As for :func:`fedtiny.from_arrays`.

    Returns:
        The data set, for `data=` of :func:`fedtiny.run`.

    Raises:
        DataError: A Dataset has no length, or its samples differ in size or type.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
        >>> samples = TensorDataset(images, torch.tensor([0, 1, 2, 1]))
        >>> fedtiny.from_torch(samples, samples, classes=["cat", "dog", "cow"])
        <DataSet 'torch': 4 training and 4 test samples of 1x8x8, 3 classes>
    """
    named = classes if classes is not None else getattr(train, "classes", None)
    pairs = _collected(train), _collected(test)
    return from_arrays(
        *pairs,
        classes=named,
        name=name,
        layout=layout,
        device_ids=device_ids,
        flips=flips,
        crop_padding=crop_padding,
    )


def as_held(pair: tuple[ArrayLike, ArrayLike], layout: ArrayLayout | None) -> tuple[Array, Array]:
    """Samples as [N, C, H, W], and labels."""
    try:
        samples, labels = map(np.asarray, pair)
    except (TypeError, ValueError) as uneven:
        raise DataError("train and test must be (samples, labels) pairs of arrays") from uneven
    if 0 in samples.shape:
        raise DataError(f"an array of shape {list(samples.shape)} holds no samples")
    _check_labels(labels)
    order = _order(samples, layout)
    samples = _pixels(samples) if _reads_images(layout) else _measured(samples)
    samples = samples.transpose(order)
    if layout == "NF":
        samples = samples[:, :, None, None]
    elif samples.ndim == 3:  # gray images have one channel, sequences one row
        samples = samples[:, None] if _reads_images(layout) else samples[:, :, None]
    return _own(samples), _own(labels.astype(np.int64))


def _check_labels(labels: Array) -> None:
    """Refuse what is not one class for each sample."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise DataError(
            f"labels must be one class for each sample, but have shape {list(labels.shape)}; "
            "give labels.ravel()"
        )
    if labels.ndim == 2:
        raise DataError(
            f"labels must be one class for each sample, but have shape {list(labels.shape)}: "
            "multi-label targets are not supported; of one-hot rows give labels.argmax(axis=1)"
        )
    if labels.dtype.kind == "f":
        raise DataError(
            f"labels must be whole numbers, but are {labels.dtype}: regression targets are not "
            "supported; of classes give labels.astype(int)"
        )
    if labels.dtype.kind not in "iu":
        raise DataError(
            f"labels must be whole numbers from 0, but are {labels.dtype}; for names, number them "
            "and pass classes=[...]"
        )


def _reads_images(layout: str | None) -> bool:
    return layout is None or HELD_AS[layout][0] == "NCHW"


def _order(samples: Array, layout: str | None) -> tuple[int, ...]:
    """The order of the dimensions as they are held; refuses an array that could be two things."""
    if layout is not None and layout not in HELD_AS:
        raise DataError(f"there is no layout {layout!r}; choose one of {', '.join(HELD_AS)}")
    if layout is not None:
        order = HELD_AS[layout][1]
        if samples.ndim != len(layout):
            raise DataError(
                f"an array of shape {list(samples.shape)} is not {layout}, which has "
                f"{len(layout)} dimensions"
            )
        return order
    found = _unmistakable(samples)
    if found is None and samples.ndim in CHOICES:
        raise DataError(
            f"an array of {samples.dtype} and shape {list(samples.shape)} does not say what its "
            f"dimensions are; pass {CHOICES[samples.ndim]} (--data.layout for a file)"
        )
    return HELD_AS[found][1] if found else tuple(range(samples.ndim))


def _unmistakable(samples: Array) -> ArrayLayout | None:
    """The layout of images that can be nothing else: by their few channels, or square and gray."""
    sides = samples.shape[1:]
    if len(sides) == 2 and sides[0] == sides[1] and _are_bytes(samples):
        return "NHW"
    if len(sides) != 3 or (sides[0] in CHANNELS) == (sides[2] in CHANNELS):
        return None
    return "NCHW" if sides[0] in CHANNELS else "NHWC"


def _are_bytes(samples: Array) -> bool:
    """Whether these are whole numbers from 0 to 255, as pixels are."""
    integers = samples.dtype.kind in "iu"
    return integers and (not samples.size or (samples.min() >= 0 and samples.max() <= 255))


def _own(array: Array) -> Array:
    """Contiguous and writable, as torch wants its arrays."""
    return np.require(array, requirements=["C", "W"])


def _measured(samples: Array) -> Array:
    """What sensors or columns say, as floats."""
    if samples.dtype.kind not in "fiub" or not np.isfinite(samples).all():
        raise DataError(
            f"sequences and tables must hold finite numbers, but are {samples.dtype}"
            + (" with nan or inf" if samples.dtype.kind == "f" else "")
        )
    return _as_floats(samples, "sequences and tables")


def _as_floats(samples: Array, what: str) -> Array:
    with np.errstate(over="ignore"):
        found = samples.astype(np.float32, copy=False)
    if not (np.abs(found) < MAX_VALUE).all():
        raise DataError(f"{what} must hold numbers below {MAX_VALUE:g}; scale them")
    return found


def _pixels(images: Array) -> Array:
    if images.dtype.kind == "f":
        if not np.isfinite(images).all():
            raise DataError("float images must be finite, but hold nan or inf")
        return _as_floats(images, "float images")
    if images.dtype.kind not in "iu":
        raise DataError(f"images must be whole numbers or floats, but are {images.dtype}")
    if images.size and (images.min() < 0 or images.max() > 255):
        raise DataError("images of whole numbers must be from 0 to 255")
    return images.astype(np.uint8, copy=False)


def _class_names(classes: Sequence[str] | None, *labels: Array) -> tuple[str, ...]:
    if classes is not None:
        return tuple(map(str, classes))
    highest = max((int(some.max()) for some in labels if some.size), default=0)
    return tuple(map(str, range(require_classes(highest))))


def require_classes(highest: int) -> int:
    """The number of classes that labels up to this one have, if that is a possible one."""
    if highest >= MAX_CLASSES:
        raise DataError(
            f"labels go up to {highest:,}; number the classes from 0, {MAX_CLASSES:,} at most"
        )
    return highest + 1


def _collected(dataset: Any) -> tuple[Array, Array]:
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError) as endless:
        raise DataError("a torch Dataset needs a length; iterable ones do not serve") from endless
    if count == 0:
        raise DataError("a torch Dataset must not be empty")
    labels = np.empty(count, dtype=np.int64)
    images = np.empty(0)
    for index in range(count):
        array, label = _sample(dataset[index], index)
        if index == 0:
            images = np.empty((count, *array.shape), dtype=array.dtype)
        if array.shape != images.shape[1:] or array.dtype != images.dtype:
            raise DataError(
                f"sample {index} differs in size or type from sample 0; make them alike"
            )
        images[index], labels[index] = array, label
    return images, labels


def _sample(sample: Any, index: int) -> tuple[Array, int]:
    try:
        image, label = sample
        if hasattr(image, "convert") and image.mode != "L":
            return np.asarray(image.convert("RGB")).transpose(2, 0, 1), int(label)
        array = np.asarray(image)
        return (array[None] if hasattr(image, "convert") else array), int(label)
    except (TypeError, ValueError) as other:
        raise DataError(f"sample {index} must be a pair of a sample and a label") from other
