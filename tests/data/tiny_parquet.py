"""Tiny Parquet files in the hub's layout."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ENCODED_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMAS = {
    "cifar10": ("img", "label", 10),
    "cifar100": ("img", "fine_label", 100),
    "cinic10": ("image", "label", 10),
    "svhn": ("image", "label", 10),
}


def random_images(count: int, seed: int = 0, size: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, size, size), dtype=np.uint8)


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def class_names(name: str) -> dict[str, str]:
    _, label_column, n_classes = SCHEMAS[name]
    names = [f"{name} {label}" for label in range(n_classes)]
    features = {label_column: {"names": names, "_type": "ClassLabel"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def write_parquet(path: Path, name: str, images: list, labels: list, named: bool = True) -> None:
    """One file of the named set's schema, with class names ``NAME 0``, ``NAME 1``, ..."""
    image_column, label_column, _ = SCHEMAS[name]
    structs = [{"bytes": image, "path": "x.png"} for image in images]
    columns = {image_column: pa.array(structs, ENCODED_IMAGE), label_column: pa.array(labels)}
    if name == "cifar100":
        columns["coarse_label"] = pa.array([0] * len(labels))
    table = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = class_names(name) if named else None
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=4)
