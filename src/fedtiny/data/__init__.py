"""Data sets: by name, of arrays, or of any map-style torch Dataset.

Their partition over devices and their batched augmentation are in the modules beside.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedtiny.data.cache import Cache
from fedtiny.data.hub import KNOWN, SPLITS, root_folder, split_files
from fedtiny.data.image_files import folder, own_images, parquet_rows
from fedtiny.data.images import SPLIT_SEED, TEST_SHARE, Array, hold_out
from fedtiny.data.images import DataSet as DataSet
from fedtiny.data.images import ImageSet as ImageSet
from fedtiny.data.partition import Partition as Partition
from fedtiny.errors import DataError, did_you_mean
from fedtiny.extras import require
from fedtiny.randomness import generator

if TYPE_CHECKING:
    from torch.utils.data import Dataset

CHANNELS = (1, 2, 3, 4)
BRIGHTEST_DIGIT = 16  # scikit-learn's pixels go from 0 to 16


def names() -> dict[str, str]:
    """The named sets and what each holds in one line."""
    described = {name: known.description for name, known in KNOWN.items()}
    return {"digits": "1,797 handwritten digits of 8x8 pixels, without any download", **described}


def load(name: str, root: str | Path | None = None, cache: str | Path | None = None) -> DataSet:
    """A named set, or ``folder`` for the images by class in the folder ``root``.

    Named sets are read from Parquet files below ROOT/NAME (``root``, else ``$FEDTINY_DATA``,
    else ``data``) and decoded once into ``cache`` (else ``$FEDTINY_CACHE``, else
    ``~/.cache/fedtiny``). Of CINIC-10's three splits the validation split is kept out: as in
    the paper, runs train on the training split and are measured on the test split.

    >>> load("digits").train.shape
    (1, 8, 8)
    """
    if name == "digits":
        return digits()
    if name == "folder":
        return folder(root_folder(root), Cache.at(cache))
    if name in KNOWN:
        known = KNOWN[name]
        train, test = (
            parquet_rows(
                split_files(root_folder(root), name, split, known.config),
                f"{name} {split}",
                known.n_classes,
                Cache.at(cache),
            )
            for split in SPLITS
        )
        return DataSet(name, train, test, known.mean, known.std, known.flips, known.crop_padding)
    available = [*names(), "folder"]
    guess = did_you_mean(name, available, cutoff=0.5)
    raise DataError(f"there is no data set {name!r} among {', '.join(available)}{guess}")


def digits() -> DataSet:
    """1,797 gray images of 8x8 pixels, a fifth of each digit held out for testing.

    They come with scikit-learn. The split is the same for every run, whatever the run's seed.
    """
    raw = require("sklearn.datasets", extra="data").load_digits()
    images = np.rint(raw.images * (255 / BRIGHTEST_DIGIT)).astype(np.uint8)[:, None]
    every_digit = ImageSet(images, raw.target.astype(np.int64), tuple("0123456789"))
    parts = hold_out(every_digit.labels, TEST_SHARE, generator(SPLIT_SEED, "digits split"))
    train, test = map(every_digit.subset, parts)
    return DataSet.measured("digits", train, test, flips=False, crop_padding=0)


def load_own(path: Path, classes: tuple[str, ...], cache: str | Path | None = None) -> ImageSet:
    """The images that a device has itself: a Parquet file, a folder of such, or one by class.

    Labels mean these classes; a folder need not have all of them.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if path.is_dir() and not files:
        return own_images(path, classes, Cache.at(cache))
    if not all(file.is_file() and file.suffix == ".parquet" for file in files):
        raise DataError(f"{path} is neither a Parquet file nor a folder")
    found = parquet_rows(files, path.name, len(classes), Cache.at(cache))
    if found.classes not in (classes, tuple(map(str, range(len(classes))))):
        raise DataError(f"{path} names other classes than {', '.join(classes)}")
    return replace(found, classes=classes)


def from_arrays(
    train: tuple[ArrayLike, ArrayLike],
    test: tuple[ArrayLike, ArrayLike],
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    *,
    flips: bool = False,
    crop_padding: int | None = None,
) -> DataSet:
    """A data set of (images, labels) pairs.

    Images are [N, C, H, W], [N, H, W, C] or [N, H, W]. Whole numbers from 0 to 255 are
    normalized by their measured mean and std; floats are taken as normalized already. Classes
    are numbered where no names are given, and the crop padding is an eighth of the size.

    >>> images, labels = np.zeros((4, 8, 8), dtype=np.uint8), [0, 1, 2, 1]
    >>> from_arrays((images, labels), (images, labels)).classes
    ('0', '1', '2')
    """
    (train_images, train_labels), (test_images, test_labels) = map(_pair, (train, test))
    named = _class_names(classes, train_labels, test_labels)
    train_set = ImageSet(train_images, train_labels, named)
    test_set = ImageSet(test_images, test_labels, named)
    return DataSet.measured(name, train_set, test_set, flips, crop_padding)


def from_torch(
    train: "Dataset[Any]",
    test: "Dataset[Any]",
    classes: Sequence[str] | None = None,
    name: str = "torch",
    *,
    flips: bool = False,
    crop_padding: int | None = None,
) -> DataSet:
    """A data set of two map-style torch Datasets that yield (image, label).

    Images are PIL images, tensors or arrays, as for :func:`from_arrays`. Each sample is read
    once, so random transforms belong into the run's augmentation and not into the Dataset.
    """
    named = classes if classes is not None else getattr(train, "classes", None)
    pairs = _collected(train), _collected(test)
    return from_arrays(*pairs, classes=named, name=name, flips=flips, crop_padding=crop_padding)


def _pair(pair: tuple[ArrayLike, ArrayLike]) -> tuple[Array, Array]:
    try:
        images, labels = map(np.asarray, pair)
    except (TypeError, ValueError) as uneven:
        raise DataError("train and test must be (images, labels) pairs of arrays") from uneven
    if labels.dtype.kind not in "iu":
        raise DataError(f"labels must be whole numbers, but are {labels.dtype}")
    images = _pixels(images)
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in CHANNELS and images.shape[3] in CHANNELS:
        images = images.transpose(0, 3, 1, 2)
    return _own(images), _own(labels.astype(np.int64))


def _own(array: Array) -> Array:
    """Contiguous and writable, as torch wants its arrays."""
    return np.require(array, requirements=["C", "W"])


def _pixels(images: Array) -> Array:
    if images.dtype.kind == "f":
        if not np.isfinite(images).all():
            raise DataError("float images must be finite, but hold nan or inf")
        return images.astype(np.float32, copy=False)
    if images.dtype.kind not in "iu":
        raise DataError(f"images must be whole numbers or floats, but are {images.dtype}")
    if images.size and (images.min() < 0 or images.max() > 255):
        raise DataError("images of whole numbers must be from 0 to 255")
    return images.astype(np.uint8, copy=False)


def _class_names(classes: Sequence[str] | None, *labels: Array) -> tuple[str, ...]:
    if classes is not None:
        return tuple(map(str, classes))
    highest = max((int(some.max()) for some in labels if some.size), default=0)
    return tuple(map(str, range(highest + 1)))


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
        raise DataError(f"sample {index} must be a pair of an image and a label") from other
