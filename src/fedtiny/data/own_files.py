"""Files of one's own: arrays (.npz), tables (.csv, .parquet) and images in Parquet files.

A folder may hold them as train and test; of a file that has both together, a fifth is for testing.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedtiny.data.arrays import ArrayLayout, from_arrays, require_classes
from fedtiny.data.cache import Cache
from fedtiny.data.image_files import IMAGE_COLUMNS, parquet_columns, parquet_rows
from fedtiny.data.images import SPLIT_SEED, TEST_SHARE, Array, DataSet, hold_out
from fedtiny.data.npz import read_npz
from fedtiny.data.partition import Partition
from fedtiny.errors import DataError, printable
from fedtiny.files import read_file
from fedtiny.randomness import generator

SUFFIXES = (".npz", ".csv", ".parquet")
NAMES = ("x_train", "y_train", "x_test", "y_test")
ALONE = ("x", "y")
LABEL = "label"
MAX_TABLE = 1 << 34  # bytes of a table as text


@dataclass(frozen=True)
class Columns:
    """Which column of a table has the labels, and which says whose row it is, if any does."""

    label: str | None = None
    device: str | None = None


def load_file(
    root: Path, cache: Cache, layout: ArrayLayout | None = None, columns: Columns | None = None
) -> DataSet:
    """The data set of a file, or of the files train and test in a folder."""
    columns = columns or Columns()
    train, test = _files(root)
    if train.suffix == ".npz":
        if columns != Columns():
            raise DataError(
                "an .npz file has arrays and no columns; put who has which sample into its array "
                "device_ids and leave --data.device-column and --data.label-column out"
            )
        return _arrays(train, layout)
    if layout not in (None, "NF"):
        raise DataError(f"{train} holds a table or images in bytes; leave --data.layout out")
    if holds_images(train):
        return _images(train, test, cache, columns)
    tables = [read_table(file, columns) for file in (train, test) if file]
    return _of_tables(tables)


def holds_images(file: Path) -> bool:
    """Whether a file is a Parquet file with a column of images."""
    return file.suffix == ".parquet" and bool(set(IMAGE_COLUMNS) & set(parquet_columns(file)))


def _files(root: Path) -> tuple[Path, Path | None]:
    """The training file and, in a folder, the test file."""
    if root.is_dir():
        found = [root / f"train{suffix}" for suffix in SUFFIXES]
        train = next((path for path in found if path.is_file()), None)
        test = train and train.with_stem("test")
        if train is None or test is None or not test.is_file():
            raise DataError(f"{root} needs train.csv and test.csv, or train and test .parquet")
        return train, test
    if root.exists() and not root.is_file():
        raise DataError(f"{root} is not a regular file; point --data.root at one")
    if not root.is_file() or root.suffix not in SUFFIXES:
        raise DataError(
            f"{root} is no .npz, .csv or .parquet file that can be read; point --data.root at one"
        )
    return root, None


def declared_layout(
    file: Path, found: Mapping[str, Array], layout: ArrayLayout | None
) -> ArrayLayout | None:
    """What the dimensions of its arrays are, as a file or a setting declares it."""
    declared: Any = str(found["layout"]) if "layout" in found else layout
    if declared not in (None, *get_args(ArrayLayout)):
        known = ", ".join(get_args(ArrayLayout))
        raise DataError(f"{file} declares the layout {declared!r}, which is none of {known}")
    if layout not in (None, declared):
        raise DataError(
            f"{file} declares the layout {declared}, and --data.layout {layout}; leave the flag out"
        )
    return declared  # type: ignore[no-any-return]


def _arrays(file: Path, layout: ArrayLayout | None) -> DataSet:
    """What an .npz file holds: x_train, y_train, x_test, y_test, or x and y.

    It may hold classes, device_ids and a layout too.
    """
    found = read_npz(file)
    named = [printable(str(n)) for n in found["classes"].flat] if "classes" in found else None
    declared = declared_layout(file, found, layout)
    ids = found.get("device_ids")
    if set(NAMES) <= set(found):
        pairs = (found["x_train"], found["y_train"]), (found["x_test"], found["y_test"])
    elif set(ALONE) <= set(found):
        if found["x"].shape[:1] != found["y"].shape[:1] or not found["y"].ndim:
            raise DataError(f"{file} needs as many labels in y as samples in x")
        kept, held_out = _parts(found["y"])
        pairs = (found["x"][kept], found["y"][kept]), (found["x"][held_out], found["y"][held_out])
        ids = None if ids is None else _for_all(ids, found["y"])[kept]
    else:
        raise DataError(
            f"{file} needs the arrays {', '.join(NAMES)}, or x and y, but has {', '.join(found)}"
        )
    return from_arrays(*pairs, named, file.stem, layout=declared, device_ids=ids)


def _for_all(ids: Array, labels: Array) -> Array:
    if ids.shape != labels.shape:
        raise DataError(f"device_ids have shape {list(ids.shape)}, labels {list(labels.shape)}")
    return ids


def _parts(labels: Array) -> tuple[Array, Array]:
    """Which samples are trained on and which are for testing, the same in every run."""
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return np.arange(len(labels)), np.arange(0)  # which is refused in words of its own
    classes, codes = np.unique(labels, return_inverse=True)
    if len(labels) > 1 and len(classes) == len(labels):
        raise DataError(
            f"every one of {len(labels)} samples has a label of its own: regression targets are "
            "not supported; give the number of a class for each sample"
        )
    return hold_out(codes, TEST_SHARE, generator(SPLIT_SEED, "file split"))


@dataclass(frozen=True, eq=False)
class Table:
    """Features by column name, labels, and whose row each is."""

    file: Path
    features: Mapping[str, Array]
    labels: Sequence[str]
    ids: Array | None


def _of_tables(tables: Sequence[Table]) -> DataSet:
    first = tables[0]
    if any(list(table.features) != list(first.features) for table in tables):
        raise DataError(f"{tables[-1].file} has other columns than {first.file}")
    if not first.features:
        raise DataError(f"{first.file} has no columns beside its labels to learn from")
    classes = sorted({label for table in tables for label in table.labels}, key=_in_order)
    number = {label: position for position, label in enumerate(classes)}
    pairs = [
        (np.stack(list(table.features.values()), axis=1), [number[name] for name in table.labels])
        for table in tables
    ]
    ids = first.ids
    if len(tables) == 1:
        rows, labels = pairs[0][0], np.array(pairs[0][1], dtype=np.int64)
        kept, held_out = _parts(labels)
        pairs = [(rows[part], labels[part]) for part in (kept, held_out)]  # type: ignore[misc]
        ids = None if ids is None else ids[kept]
    return from_arrays(pairs[0], pairs[1], classes, first.file.stem, layout="NF", device_ids=ids)


def _in_order(label: str) -> tuple[int, str]:
    """Numbers by their value, words by the alphabet."""
    return (int(label), "") if label.isdecimal() else (2**63, label)


def read_table(file: Path, columns: Columns, *, of_one: bool = False) -> Table:
    """The rows of a .csv or .parquet file; those `of_one` device need not say whose they are."""
    read = _csv_columns if file.suffix == ".csv" else _parquet_table
    found = read(file)
    label, device = columns.label or LABEL, columns.device
    for column, flag in ((label, "label"), (device, "device")):
        if column is not None and column not in found and not (of_one and flag == "device"):
            raise DataError(
                f"{file} has no column {column!r} (it has {', '.join(found)}); name one with "
                f"--data.{flag}-column"
            )
    features = {
        name: _numbers(file, name, values)
        for name, values in found.items()
        if name not in (label, device)
    }
    whose = found.get(device) if device is not None else None
    ids = None if whose is None else np.array([str(value) for value in whose])
    return Table(file, features, _label_names(file, label, found[label]), ids)


def _label_names(file: Path, column: str, values: Sequence[Any]) -> list[str]:
    for row, value in enumerate(values, start=1):
        if value is None or not str(value).strip():
            raise DataError(f"column {column!r} of {file} holds nothing, in row {row}; fill it in")
    try:
        return [_label_name(value) for value in values]
    except ValueError as fraction:
        raise DataError(
            f"column {column!r} of {file} holds {fraction!s:.40}: regression targets are not "
            "supported; name a column of classes with --data.label-column"
        ) from fraction


def _label_name(value: Any) -> str:
    """A class by its name or its whole number; a fraction is none."""
    text = printable(str(value).strip())
    try:
        number = float(text)
    except ValueError:
        return text
    if not number.is_integer():
        raise ValueError(text)
    return str(int(number))


def _numbers(file: Path, name: str, values: Sequence[Any]) -> Array:
    try:
        with np.errstate(over="ignore"):  # what becomes infinite is refused later
            found = np.array(values, dtype=np.float32)
    except (TypeError, ValueError) as other:
        row, value = next((n, v) for n, v in enumerate(values, start=1) if not _is_number(v))
        what = f"{str(value)!r:.40}, which is no number" if str(value).strip() else "nothing"
        raise DataError(
            f"column {name!r} of {file} holds {what}, in row {row}; code it as numbers, or leave "
            "the row or the column out"
        ) from other
    if found.ndim != 1:
        raise DataError(f"column {name!r} of {file} holds lists; give each number its own column")
    return found


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _csv_columns(file: Path) -> dict[str, list[str]]:
    try:
        text = io.StringIO(read_file(file, MAX_TABLE).decode("utf-8-sig"), newline="")
        header, *rows = csv.reader(text)
    except (OSError, ValueError, csv.Error) as broken:
        raise DataError(f"{file} is not a readable CSV file with a header") from broken
    rows = [row for row in rows if row]
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise DataError(
                f"row {number + 1} of {file} has {len(row)} values, its header {len(header)}"
            )
    if not rows or len(set(header)) != len(header):
        raise DataError(f"{file} needs a header with different names, and rows below it")
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}


def _class_count(file: Path, labels: Sequence[Any]) -> int:
    """One more than the highest label, each of which must be the number of a class."""
    if not labels or not all(type(label) is int for label in labels):
        raise DataError(f"the labels of {file} must be whole numbers, one for each image")
    return require_classes(max(labels))


def _parquet_table(file: Path) -> dict[str, list[Any]]:
    return parquet_columns(file, values=True)


def _images(train: Path, test: Path | None, cache: Cache, columns: Columns) -> DataSet:
    """Images in Parquet files, which say by a column whose they are."""
    label = columns.label
    files = [file for file in (train, test) if file]
    own = [parquet_columns(file, values=True, but=IMAGE_COLUMNS) for file in files]
    named = [next((n for n in (label, LABEL, "fine_label") if n in found), None) for found in own]
    if None in named:
        raise DataError(f"{train} has no column of labels; name one with --data.label-column")
    labels = [found[name] for found, name in zip(own, named, strict=True) if name]
    n_classes = _class_count(train, [label for column in labels for label in column])
    sets = [
        parquet_rows([file], file.name, n_classes, cache, label=name)
        for file, name in zip(files, named, strict=True)
    ]
    device = columns.device
    if device is not None and device not in own[0]:
        raise DataError(f"{train} has no column {device!r}; name one with --data.device-column")
    ids = None if device is None else np.array([str(value) for value in own[0][device]])
    if test is None:
        kept, held_out = _parts(sets[0].labels)
        sets = [sets[0].subset(part) for part in (kept, held_out)]
        ids = None if ids is None else ids[kept]
    data = DataSet.measured(train.stem, sets[0], sets[1], flips=False, crop_padding=None)
    return data if ids is None else replace(data, partition=Partition.by_ids(ids))
