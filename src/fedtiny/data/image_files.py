"""Read labelled images from files, decoded in batches: rows of Parquet files, or class folders.

In the hub's layout an image column holds ``{bytes, path}`` of encoded images, a label column holds
integers, and the schema's ``huggingface`` metadata may name the classes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedtiny.data.cache import Cache, Decoding, content_key
from fedtiny.data.images import SPLIT_SEED, TEST_SHARE, Array, DataSet, ImageSet, hold_out
from fedtiny.errors import DataError
from fedtiny.extras import require
from fedtiny.files import parse_json
from fedtiny.randomness import generator

BATCH = 512
MAX_IMAGE = 1 << 30  # bytes of an image file
IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}


class Encoded(NamedTuple):
    """An encoded image, its label, and where it comes from."""

    image: Path | bytes
    label: int
    where: str


def decode(samples: Iterable[Encoded]) -> Iterator[tuple[Array, Array]]:
    """Batches of RGB images [N, 3, H, W] of one size, with their labels."""
    remaining = iter(samples)
    shape = None
    while batch := list(islice(remaining, BATCH)):
        images = [pixels(sample) for sample in batch]
        shape = shape or images[0].shape
        for image, sample in zip(images, batch, strict=True):
            if image.shape != shape:
                raise DataError(
                    f"{sample.where} is {_size(image.shape)} where the first image is "
                    f"{_size(shape)}; resize all images to one size"
                )
        yield np.stack(images), np.array([sample.label for sample in batch], dtype=np.int64)


def pixels(sample: Encoded) -> Array:
    """One image as uint8 [3, H, W]."""
    source = BytesIO(sample.image) if isinstance(sample.image, bytes) else sample.image
    image_module = require("PIL.Image", extra="images")
    try:
        with image_module.open(source) as image:
            deep = image.mode.startswith(("I", "F"))
            rgb = np.asarray(image.convert("RGB"))
    except Exception as broken:  # Pillow's readers raise many kinds on damaged files
        raise DataError(f"{sample.where} cannot be decoded ({broken}); replace it") from broken
    if deep:
        raise DataError(f"{sample.where} has more than 8 bits a channel; convert it to 8 bits")
    return rgb.transpose(2, 0, 1)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}x{shape[1]}"


def parquet_rows(
    files: Sequence[Path], what: str, n_classes: int, cache: Cache, label: str | None = None
) -> ImageSet:
    """The images of these shards of one split, in their order; a column may be named for labels."""
    kind = f"parquet {n_classes}" + (f" by {label}" if label else "")
    key = content_key(kind, ((str(i), f) for i, f in enumerate(files)))
    return cache.get(key, lambda: parquet_decoding(files, what, n_classes, label))


def parquet_decoding(
    files: Sequence[Path], what: str, n_classes: int, label: str | None = None
) -> Decoding:
    """What such shards hold, to be decoded."""
    classes, counts = zip(*(_header(file, n_classes, label) for file in files), strict=True)
    if len(set(classes)) > 1:
        raise DataError(f"the files of {what} name different classes; fetch them again")
    if sum(counts) == 0:
        raise DataError(f"the files of {what} hold no images; fetch them again")
    samples = (sample for file in files for sample in _samples(file, n_classes, label))
    return Decoding(what, sum(counts), classes[0], decode(samples))


def _samples(file: Path, n_classes: int, named: str | None) -> Iterator[Encoded]:
    with _opened(file) as table:
        columns = _columns(file, table.schema_arrow.names, named)
        batches = table.iter_batches(BATCH, columns=columns)
        lists = ([batch.column(name).to_pylist() for name in columns] for batch in batches)
        rows = (row for columns in lists for row in zip(*columns, strict=True))
        for number, (image, label) in enumerate(rows):
            yield _checked(image, label, n_classes, f"row {number} of {file}")


def _checked(image: Any, label: Any, n_classes: int, where: str) -> Encoded:
    encoded = image.get("bytes") if isinstance(image, dict) else None
    if not isinstance(encoded, bytes):
        raise DataError(f"{where} holds no image bytes; fetch the file again")
    if not isinstance(label, int) or not 0 <= label < n_classes:
        raise DataError(f"{where} has label {label}, but labels go from 0 to {n_classes - 1}")
    return Encoded(encoded, label, where)


def _columns(file: Path, present: Sequence[str], named: str | None = None) -> tuple[str, str]:
    image = next((name for name in IMAGE_COLUMNS if name in present), None)
    label = next((name for name in (named, *LABEL_COLUMNS) if name in present), None)
    if image is None or label is None:
        raise DataError(
            f"{file} needs an image column ({' or '.join(IMAGE_COLUMNS)}) and a label column "
            f"({' or '.join(LABEL_COLUMNS)}), but has {', '.join(present)}"
        )
    return image, label


def parquet_columns(
    file: Path, *, values: bool = False, but: Sequence[str] = ()
) -> dict[str, list[Any]]:
    """The columns of a Parquet file by name, with their values if these are wanted."""
    with _opened(file) as table:
        names = [name for name in table.schema_arrow.names if name not in but]
        return table.read(names).to_pydict() if values else {name: [] for name in names}


def _header(file: Path, n_classes: int, named: str | None = None) -> tuple[tuple[str, ...], int]:
    """The class names in the metadata, else the numbers; and how many rows there are."""
    with _opened(file) as table:
        schema, n_rows = table.schema_arrow, int(table.metadata.num_rows)
    _, label = _columns(file, schema.names, named)
    names = _named_in(schema.metadata or {}, label) or tuple(map(str, range(n_classes)))
    if len(names) != n_classes:
        raise DataError(f"{file} has {len(names)} classes where {n_classes} belong: another set?")
    return names, n_rows


def _named_in(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    try:
        features = parse_json(metadata[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):
        return None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    parquet = require("pyarrow.parquet", extra="data")
    arrow_error = require("pyarrow", extra="data").ArrowException
    try:
        with parquet.ParquetFile(file) as table:
            yield table
    except (OSError, arrow_error) as broken:
        raise DataError(f"{file} is not a readable Parquet file; fetch it again") from broken


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
        classes = _folder_names(train)
        samples = _listed(train, classes), _listed(test, classes)
    else:
        classes = _folder_names(root)
        samples = _held_out(_listed(root, classes))
    train_set, test_set = (_decoded(root, part, classes, cache) for part in samples)
    return DataSet.measured("folder", train_set, test_set, flips=True, crop_padding=None)


def own_images(root: Path, classes: tuple[str, ...], cache: Cache) -> ImageSet:
    """All images of ROOT/CLASS, with the labels that these classes have elsewhere."""
    return _decoded(root, _listed(root, classes), classes, cache)


def _folder_names(parent: Path) -> tuple[str, ...]:
    folders = (path.name for path in parent.iterdir() if path.is_dir())
    return tuple(sorted(name for name in folders if not name.startswith(".")))


def _listed(parent: Path, classes: Sequence[str]) -> list[Encoded]:
    """The images of PARENT/CLASS, class after class."""
    unknown = sorted(set(_folder_names(parent)) - set(classes))
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
    tagged = ((f"{label} {p.name}", p) for label, p in paths)
    key = content_key(f"folder {classes}", tagged, MAX_IMAGE)
    return cache.get(key, lambda: Decoding(root.name, len(samples), classes, decode(samples)))
