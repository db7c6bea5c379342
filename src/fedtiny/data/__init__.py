"""Data sets: by name, of arrays, or of any map-style torch Dataset.

Their partition over devices and their batched augmentation are in the modules beside.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtiny.data.arrays import ArrayLayout as ArrayLayout
from fedtiny.data.arrays import from_arrays as from_arrays
from fedtiny.data.arrays import from_torch as from_torch
from fedtiny.data.cache import Cache
from fedtiny.data.device_files import device_file
from fedtiny.data.hub import KNOWN, SPLITS, root_folder, split_files
from fedtiny.data.image_files import folder, own_images, parquet_rows
from fedtiny.data.images import SPLIT_SEED, TEST_SHARE, hold_out
from fedtiny.data.images import DataSet as DataSet
from fedtiny.data.images import ImageSet as ImageSet
from fedtiny.data.own_files import SUFFIXES, holds_images, load_file
from fedtiny.data.own_files import Columns as Columns
from fedtiny.data.partition import Partition as Partition
from fedtiny.errors import DataError, did_you_mean
from fedtiny.randomness import generator

DIGITS = Path(__file__).with_name("digits.npz")
"""UCI's Optical Recognition of Handwritten Digits (CC BY 4.0; see NOTICE): the 1,797 images and
labels of its test file, in its order, as scikit-learn's `load_digits` has them."""
BRIGHTEST_DIGIT = 16  # its pixels go from 0 to 16


def names() -> dict[str, str]:
    """The named sets.

    Returns:
        What each holds, in one line, by its name.

    Example:
        >>> "digits" in fedtiny.data.names()
        True
    """
    described = {name: known.description for name, known in KNOWN.items()}
    return {"digits": "1,797 handwritten digits of 8x8 pixels, without any download", **described}


def load(
    name: str,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    *,
    layout: ArrayLayout | None = None,
    columns: Columns | None = None,
) -> DataSet:
    """A data set by its name, or out of files.

    Named sets are read from Parquet files below ROOT/NAME. Of CINIC-10's three splits the
    validation split is kept out: as in the paper, runs train on the training split and are measured
    on the test split.

    Args:
        name: One of :func:`fedtiny.data.names`, `folder` for images by class in a folder, or `file`
            for an .npz, .csv or .parquet file.
        root: The folder or file; default: the environment variable FEDTINY_DATA, else `data`.
        cache: Where images are decoded to, once; default: the environment variable FEDTINY_CACHE,
            else `~/.cache/fedtiny`.
        layout: What the dimensions of a file's arrays are, as for :func:`fedtiny.from_arrays`.
        columns: Which columns of a file hold the classes and the devices.

    Returns:
        The data set.

    Raises:
        DataError: There is no such set, or its files are missing or damaged.

    Example:
        >>> fedtiny.data.load("digits").train.shape
        (1, 8, 8)
    """
    if name == "file":
        return load_file(root_folder(root), Cache.at(cache), layout, columns)
    if layout or (columns or Columns()) != Columns():
        raise DataError(
            "--data.layout, --data.label-column and --data.device-column are for --data.name file, "
            f"not for {name!r}"
        )
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
    available = [*names(), "folder", "file"]
    guess = did_you_mean(name, available, cutoff=0.5)
    raise DataError(f"there is no data set {name!r} among {', '.join(available)}{guess}")


def digits() -> DataSet:
    """1,797 gray images of 8x8 pixels, a fifth of each digit held out for testing.

    They come with the package. The split is the same for every run, whatever the run's seed.
    """
    with np.load(DIGITS, allow_pickle=False) as file:
        pixels, labels = file["images"], file["labels"]
    images = np.rint(pixels * (255 / BRIGHTEST_DIGIT)).astype(np.uint8)[:, None]
    every_digit = ImageSet(images, labels.astype(np.int64), tuple("0123456789"))
    parts = hold_out(every_digit.labels, TEST_SHARE, generator(SPLIT_SEED, "digits split"))
    train, test = map(every_digit.subset, parts)
    return DataSet.measured("digits", train, test, flips=False, crop_padding=0)


def load_own(
    path: Path,
    classes: tuple[str, ...],
    cache: str | Path | None = None,
    *,
    layout: ArrayLayout | None = None,
    columns: Columns | None = None,
) -> ImageSet:
    """What a device has itself: arrays (.npz), a table, or images in Parquet files or by class.

    Labels mean these classes; a device need not have all of them.
    """
    if path.is_file() and path.suffix in SUFFIXES and not holds_images(path):
        return device_file(path, classes, layout, columns or Columns())
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if path.is_dir() and not files:
        return own_images(path, classes, Cache.at(cache))
    if not all(file.is_file() and file.suffix == ".parquet" for file in files):
        raise DataError(f"{path} is no .npz, .csv or .parquet file and no folder")
    found = parquet_rows(files, path.name, len(classes), Cache.at(cache))
    if found.classes not in (classes, tuple(map(str, range(len(classes))))):
        raise DataError(f"{path} names other classes than {', '.join(classes)}")
    return replace(found, classes=classes)
