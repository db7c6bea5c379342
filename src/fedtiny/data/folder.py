"""Read a folder that holds a folder of images for each class."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtiny.data.cache import Cache, content_key
from fedtiny.data.choose import hold_out
from fedtiny.data.decode import Encoded, decode
from fedtiny.data.entry import Decoding
from fedtiny.data.images import DataSet, ImageSet
from fedtiny.data.statistics import channel_statistics
from fedtiny.errors import DataError
from fedtiny.randomness import generator

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
SPLIT_SEED = 0
TEST_SHARE = 0.2


class Sample(NamedTuple):
    """An image file and its label."""

    path: Path
    label: int


def folder(root: Path, cache: Cache) -> DataSet:
    """The images of ROOT/train/CLASS and ROOT/test/CLASS, or of ROOT/CLASS split 80 to 20.

    Classes are the folders' names in alphabetical order, images become RGB and must be of one
    size, and the split is the same for every run. Mirrored images are taken to keep their class.
    """
    classes, train_samples, test_samples = _samples(root)
    train = _decoded(root, train_samples, classes, cache)
    test = _decoded(root, test_samples, classes, cache)
    mean, std = channel_statistics(train.images)
    padding = max(train.shape[1:]) // 8
    return DataSet("folder", train, test, mean, std, flips=True, crop_padding=padding)


def own_images(root: Path, classes: tuple[str, ...], cache: Cache) -> ImageSet:
    """All images of ROOT/CLASS, with the labels that these classes have elsewhere."""
    unknown = sorted(set(_class_names(root)) - set(classes))
    if unknown:
        raise DataError(f"{root} has a class {unknown[0]!r}; known are {', '.join(classes)}")
    return _decoded(root, _listed(root, classes), classes, cache)


def _samples(root: Path) -> tuple[tuple[str, ...], list[Sample], list[Sample]]:
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; point --data.root at a folder of images")
    train, test = root / "train", root / "test"
    if train.is_dir() != test.is_dir():
        raise DataError(f"{root} needs both train/ and test/, or class folders and neither")
    if train.is_dir():
        return _pair(train, test)
    classes = _class_names(root)
    return classes, *_held_out(_listed(root, classes))


def _pair(train: Path, test: Path) -> tuple[tuple[str, ...], list[Sample], list[Sample]]:
    classes = _class_names(train)
    unknown = sorted(set(_class_names(test)) - set(classes))
    if unknown:
        raise DataError(f"{test} has a class {unknown[0]!r} that {train} does not have")
    return classes, _listed(train, classes), _listed(test, classes)


def _held_out(samples: list[Sample]) -> tuple[list[Sample], list[Sample]]:
    labels = np.array([sample.label for sample in samples])
    train, test = hold_out(labels, TEST_SHARE, generator(SPLIT_SEED, "folder split"))
    if len(test) == 0:
        raise DataError("a class needs 2 images or more so that some can be held out for testing")
    return [samples[index] for index in train], [samples[index] for index in test]


def _class_names(parent: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in parent.iterdir() if _is_class(path)))


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _listed(parent: Path, classes: Sequence[str]) -> list[Sample]:
    samples = [
        Sample(path, label)
        for label, name in enumerate(classes)
        for path in sorted((parent / name).rglob("*"))
        if _is_image(path)
    ]
    if not samples:
        raise DataError(f"{parent} holds no images; they belong into {parent}/CLASS/*.png")
    return samples


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _decoded(root: Path, samples: list[Sample], classes: tuple[str, ...], cache: Cache) -> ImageSet:
    tagged = ((f"{sample.label} {sample.path.name}", sample.path) for sample in samples)
    key = content_key(f"folder {classes}", tagged)
    return cache.get(key, partial(_decoding, root, samples, classes))


def _decoding(root: Path, samples: list[Sample], classes: tuple[str, ...]) -> Decoding:
    encoded = (Encoded(sample.path, sample.label, str(sample.path)) for sample in samples)
    return Decoding(root.name, len(samples), classes, decode(encoded))
