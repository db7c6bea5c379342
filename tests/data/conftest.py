"""Tiny Parquet files in the hub's layout, and the real ones where they are at hand."""

import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

REAL_DATA = Path(os.environ.get("FEDTINY_DATA", "data"))
ENCODED_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SCHEMAS = {
    "cifar10": ("img", "label", 10),
    "cifar100": ("img", "fine_label", 100),
    "cinic10": ("image", "label", 10),
    "svhn": ("image", "label", 10),
}


def _random_images(count: int, seed: int = 0, size: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, size, size), dtype=np.uint8)


def _png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def _class_names(name: str) -> dict[str, str]:
    _, label_column, n_classes = SCHEMAS[name]
    names = [f"{name} {label}" for label in range(n_classes)]
    features = {label_column: {"names": names, "_type": "ClassLabel"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def _write_parquet(path: Path, name: str, images: list, labels: list, named: bool = True) -> None:
    """One file of the named set's schema, with class names ``NAME 0``, ``NAME 1``, ..."""
    image_column, label_column, _ = SCHEMAS[name]
    structs = [{"bytes": image, "path": "x.png"} for image in images]
    columns = {image_column: pa.array(structs, ENCODED_IMAGE), label_column: pa.array(labels)}
    if name == "cifar100":
        columns["coarse_label"] = pa.array([0] * len(labels))
    table = pa.table(columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = _class_names(name) if named else None
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=4)


@pytest.fixture
def random_images() -> Callable[..., np.ndarray]:
    return _random_images


@pytest.fixture
def png() -> Callable[[np.ndarray], bytes]:
    return _png


@pytest.fixture
def write_parquet() -> Callable[..., None]:
    return _write_parquet


@pytest.fixture
def make_split(tmp_path: Path) -> Callable[..., np.ndarray]:
    """Write one split below ``tmp_path/data/NAME``, label 0 to 9 in turn, and give its images."""

    def make(name: str, split: str, counts: tuple[int, ...] = (12,), below: str = "") -> np.ndarray:
        images = _random_images(sum(counts), seed=len(split))
        start = 0
        for shard, count in enumerate(counts):
            path = tmp_path / "data" / name / below
            rows = range(start, start + count)
            _write_parquet(
                path / f"{split}-{shard:05}-of-{len(counts):05}.parquet",
                name,
                [_png(images[row]) for row in rows],
                [row % 10 for row in rows],
            )
            start += count
        return images

    return make


@pytest.fixture
def real_data() -> Path:
    """The folder of the real data sets, or a skipped test."""
    if not (REAL_DATA / "cifar10").is_dir():
        pytest.skip("the real data sets are not here")
    return REAL_DATA


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDTINY_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDTINY_CACHE", str(tmp_path / "cache"))
