"""The file that one device has: all samples are its own, and mean the classes of the run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtiny.data.arrays import ArrayLayout, as_held
from fedtiny.data.images import ImageSet
from fedtiny.data.npz import read_npz
from fedtiny.data.own_files import ALONE, NAMES, Columns, declared_layout, read_table
from fedtiny.errors import DataError


def device_file(
    file: Path, classes: tuple[str, ...], layout: ArrayLayout | None, columns: Columns
) -> ImageSet:
    """The samples of an .npz file or of a table; labels mean these classes.

    Of an .npz file these are x and y, or x_train and y_train. Its labels are the numbers of the
    classes, or those of the classes that it names itself.
    """
    if file.suffix != ".npz":
        table = read_table(file, columns, of_one=True)
        if not table.features:
            raise DataError(f"{file} has no columns beside its labels to learn from")
        rows = np.stack(list(table.features.values()), axis=1)
        samples, labels = as_held((rows, _numbers(file, table.labels, classes)), "NF")
        return ImageSet(samples, labels, classes)
    found = read_npz(file)
    wanted = next((pair for pair in (ALONE, NAMES[:2]) if set(pair) <= set(found)), None)
    if wanted is None:
        raise DataError(f"{file} needs the arrays x and y, but has {', '.join(found)}")
    declared = declared_layout(file, found, layout)
    samples, labels = as_held((found[wanted[0]], found[wanted[1]]), declared)
    if "classes" in found:
        named = list(map(str, found["classes"]))
        ImageSet(samples, labels, tuple(named))  # which has a name for every label
        labels = np.array(_numbers(file, named, classes), dtype=np.int64)[labels]
    return ImageSet(samples, labels, classes)


def _numbers(file: Path, names: Sequence[str], classes: tuple[str, ...]) -> list[int]:
    """Names of classes as the run numbers them."""
    number = {name: position for position, name in enumerate(classes)}
    unknown = next((name for name in names if name not in number), None)
    if unknown is not None:
        raise DataError(f"{file} has a class {unknown!r}; known are {', '.join(classes)}")
    return [number[name] for name in names]
