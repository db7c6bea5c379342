"""Read labelled images from Parquet files in the hub's layout.

An image column holds ``{bytes, path}`` of encoded images, a label column holds integers, and
the schema's ``huggingface`` metadata may name the classes.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtiny.data.decode import Encoded, decode
from fedtiny.data.entry import Decoding
from fedtiny.errors import DataError
from fedtiny.extras import require

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
ROWS_AT_ONCE = 512


def decoding(files: Sequence[Path], what: str, n_classes: int) -> Decoding:
    """What these shards of one split hold, to be decoded in their order."""
    classes = {_class_names(file, n_classes) for file in files}
    if len(classes) > 1:
        raise DataError(f"the files of {what} name different classes; fetch them again")
    count = sum(_rows(file) for file in files)
    if count == 0:
        raise DataError(f"the files of {what} hold no images; fetch them again")
    return Decoding(what, count, classes.pop(), decode(_samples(files, n_classes)))


def _samples(files: Sequence[Path], n_classes: int) -> Iterator[Encoded]:
    for file in files:
        for row, (image, label) in enumerate(_records(file)):
            where = f"row {row} of {file}"
            yield Encoded(_encoded(image, where), _label(label, n_classes, where), where)


def _records(file: Path) -> Iterator[tuple[Any, Any]]:
    with _opened(file) as table:
        image, label = _columns(file, table.schema_arrow.names)
        for batch in table.iter_batches(ROWS_AT_ONCE, columns=[image, label]):
            images, labels = batch.column(image).to_pylist(), batch.column(label).to_pylist()
            yield from zip(images, labels, strict=True)


def _encoded(image: Any, where: str) -> bytes:
    encoded = image.get("bytes") if isinstance(image, dict) else None
    if not isinstance(encoded, bytes):
        raise DataError(f"{where} holds no image bytes; fetch the file again")
    return encoded


def _label(label: Any, n_classes: int, where: str) -> int:
    if not isinstance(label, int) or not 0 <= label < n_classes:
        raise DataError(f"{where} has label {label}, but labels go from 0 to {n_classes - 1}")
    return label


def _columns(file: Path, present: Sequence[str]) -> tuple[str, str]:
    image = next((name for name in IMAGE_COLUMNS if name in present), None)
    label = next((name for name in LABEL_COLUMNS if name in present), None)
    if image is None or label is None:
        raise DataError(
            f"{file} needs an image column ({' or '.join(IMAGE_COLUMNS)}) and a label column "
            f"({' or '.join(LABEL_COLUMNS)}), but has {', '.join(present)}"
        )
    return image, label


def _class_names(file: Path, n_classes: int) -> tuple[str, ...]:
    """The class names in the metadata, else the numbers."""
    with _opened(file) as table:
        schema = table.schema_arrow
    _, label = _columns(file, schema.names)
    names = _named_in(schema.metadata or {}, label) or tuple(map(str, range(n_classes)))
    if len(names) != n_classes:
        raise DataError(f"{file} has {len(names)} classes where {n_classes} belong: another set?")
    return names


def _named_in(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...] | None:
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):
        return None


def _rows(file: Path) -> int:
    with _opened(file) as table:
        return int(table.metadata.num_rows)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    parquet = require("pyarrow.parquet", extra="data")
    arrow_error = require("pyarrow", extra="data").ArrowException
    try:
        with parquet.ParquetFile(file) as table:
            yield table
    except (OSError, arrow_error) as broken:
        raise DataError(f"{file} is not a readable Parquet file; fetch it again") from broken
