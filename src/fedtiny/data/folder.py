"""Read a folder that holds a folder of images for each class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtiny.data.cache import Cache, Decoding, content_key
from fedtiny.data.decode import Encoded, decode
from fedtiny.data.images import SPLIT_SEED, TEST_SHARE, DataSet, ImageSet, hold_out
from fedtiny.errors import DataError
from fedtiny.randomness import generator

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


def folder(root: Path, cache: Cache) -> DataSet:
    """The images of ROOT/train/CLASS and ROOT/test/CLASS, or of ROOT/CLASS split 80 to 20.

    Classes are the folders' names in alphabetical order, images become RGB and must be of one
    size, and the split is the same for every run. Mirrored images are taken to keep their class.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root}; point --data.root at a folder of images")
    train, test = root / "train", root / "test"
    if train.is_dir() != test.is_dir():
        raise DataError(f"{root} needs both train/ and test/, or class folders and neither")
    if train.is_dir():
        classes = _class_names(train)
        samples = _listed(train, classes), _listed(test, classes)
    else:
        classes = _class_names(root)
        samples = _held_out(_listed(root, classes))
    decoded = (_decoded(root, part, classes, cache) for part in samples)
    return DataSet.measured("folder", *decoded, flips=True, crop_padding=None)


def own_images(root: Path, classes: tuple[str, ...], cache: Cache) -> ImageSet:
    """All images of ROOT/CLASS, with the labels that these classes have elsewhere."""
    return _decoded(root, _listed(root, classes), classes, cache)


def _class_names(parent: Path) -> tuple[str, ...]:
    folders = (path.name for path in parent.iterdir() if path.is_dir())
    return tuple(sorted(name for name in folders if not name.startswith(".")))


def _listed(parent: Path, classes: Sequence[str]) -> list[Encoded]:
    """The images of PARENT/CLASS, class after class."""
    unknown = sorted(set(_class_names(parent)) - set(classes))
    if unknown:
        raise DataError(f"{parent} has a class {unknown[0]!r}; known are {', '.join(classes)}")
    samples = [
        Encoded(path, label, str(path))
        for label, name in enumerate(classes)
        for path in sorted((parent / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    ]
    if not samples:
        raise DataError(f"{parent} holds no images; they belong into {parent}/CLASS/*.png")
    return samples


def _held_out(samples: list[Encoded]) -> tuple[list[Encoded], list[Encoded]]:
    labels = np.array([sample.label for sample in samples])
    train, test = hold_out(labels, TEST_SHARE, generator(SPLIT_SEED, "folder split"))
    if len(test) == 0:
        raise DataError("a class needs 2 images or more so that some can be held out for testing")
    return [samples[index] for index in train], [samples[index] for index in test]


def _decoded(
    root: Path, samples: list[Encoded], classes: tuple[str, ...], cache: Cache
) -> ImageSet:
    paths = [(sample.label, Path(sample.where)) for sample in samples]
    key = content_key(f"folder {classes}", ((f"{label} {p.name}", p) for label, p in paths))
    return cache.get(key, lambda: Decoding(root.name, len(samples), classes, decode(samples)))
