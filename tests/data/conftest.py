"""Tiny Parquet files in the hub's layout, and the real ones where they are at hand."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from . import tiny_parquet

REAL_DATA = Path(os.environ.get("FEDTINY_DATA", "data"))


@pytest.fixture
def random_images() -> Callable[..., np.ndarray]:
    return tiny_parquet.random_images


@pytest.fixture
def png() -> Callable[[np.ndarray], bytes]:
    return tiny_parquet.png


@pytest.fixture
def write_parquet() -> Callable[..., None]:
    return tiny_parquet.write_parquet


@pytest.fixture
def make_split(tmp_path: Path) -> Callable[..., np.ndarray]:
    """Write one split below ``tmp_path/data/NAME``, label 0 to 9 in turn, and give its images."""

    def make(name: str, split: str, counts: tuple[int, ...] = (12,), below: str = "") -> np.ndarray:
        images = tiny_parquet.random_images(sum(counts), seed=len(split))
        start = 0
        for shard, count in enumerate(counts):
            path = tmp_path / "data" / name / below
            rows = range(start, start + count)
            tiny_parquet.write_parquet(
                path / f"{split}-{shard:05}-of-{len(counts):05}.parquet",
                name,
                [tiny_parquet.png(images[row]) for row in rows],
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
