"""The real sets, where they are at hand; all of CIFAR-10 only where FEDTINY_SLOW_TESTS is set."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedtiny.data import load
from fedtiny.data.hub import split_files
from fedtiny.data.image_files import parquet_decoding
from fedtiny.data.images import channel_statistics


@pytest.mark.parametrize(("name", "n_classes"), [("cifar10", 10), ("cifar100", 100), ("svhn", 10)])
def test_the_first_images_of_a_real_test_split(real_data: Path, name: str, n_classes: int) -> None:
    found = parquet_decoding(split_files(real_data, name, "test", ""), name, n_classes)
    images, labels = next(found.batches)
    assert images.shape[1:] == (3, 32, 32)
    assert 0.15 < images.std() / 255 < 0.35
    assert len(np.unique(labels)) >= 10
    assert len(found.classes) == n_classes
    assert found.count == {"cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032}[name]


def test_the_first_test_images_of_cifar10_are_a_cat_and_a_ship(real_data: Path) -> None:
    found = parquet_decoding(split_files(real_data, "cifar10", "test", ""), "cifar10", 10)
    _, labels = next(found.batches)
    assert [found.classes[label] for label in labels[:2]] == ["cat", "ship"]


@pytest.mark.skipif(not os.environ.get("FEDTINY_SLOW_TESTS"), reason="decodes 60,000 images")
def test_all_of_cifar10(real_data: Path) -> None:
    data = load("cifar10", root=real_data)
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert np.bincount(data.train.labels).tolist() == [5000] * 10
    mean, std = channel_statistics(data.train.images)
    assert mean == pytest.approx(data.mean, abs=1e-5)
    assert std == pytest.approx(data.std, abs=1e-5)
