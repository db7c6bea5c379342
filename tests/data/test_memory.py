"""A user's own arrays and torch Datasets."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedtiny.data import from_arrays, from_torch
from fedtiny.errors import DataError

LABELS = [0, 2, 1, 0]


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_arrays_are_measured_and_classes_numbered() -> None:
    images = pixels(4, 3, 16, 16)
    data = from_arrays((images, LABELS), (images[:1], [3]), name="mine")
    assert data.name == "mine"
    assert data.classes == ("0", "1", "2", "3")
    assert data.mean == pytest.approx((images / 255).mean(axis=(0, 2, 3)))
    assert (data.flips, data.crop_padding) == (False, 2)
    assert np.shares_memory(data.train.images, images)


def test_channels_may_come_last_or_not_at_all() -> None:
    last, none = pixels(4, 16, 16, 3), pixels(4, 16, 16)
    data = from_arrays((last, LABELS), (last, LABELS))
    assert np.array_equal(data.train.images, last.transpose(0, 3, 1, 2))
    assert from_arrays((none, LABELS), (none, LABELS)).shape == (1, 16, 16)


def test_other_whole_numbers_become_bytes_and_read_only_arrays_are_copied() -> None:
    images = pixels(4, 1, 8, 8)
    images.flags.writeable = False
    data = from_arrays((images.astype(np.int64), LABELS), (images, LABELS))
    assert data.train.images.dtype == np.uint8
    assert data.test.images.flags.writeable


def test_float_arrays_are_taken_as_normalised() -> None:
    images = np.random.default_rng(0).normal(size=(4, 3, 8, 8))
    data = from_arrays((images, LABELS), (images, LABELS), classes=["a", "b", "c"], flips=True)
    assert data.train.images.dtype == np.float32
    assert (data.mean, data.std) == ((0.0,) * 3, (1.0,) * 3)
    assert data.flips


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (np.full((1, 1, 8, 8), 300), [0], "from 0 to 255"),
        (np.full((1, 1, 8, 8), np.nan), [0], "finite"),
        (np.full((1, 1, 8, 8), "x"), [0], "whole numbers or floats"),
        (pixels(1, 1, 8, 8), [0.5], "labels must be whole"),
        (pixels(2, 1, 8, 8), [0], "as many labels"),
        (pixels(0, 1, 8, 8), np.zeros(0, np.int64), "holds no samples"),
        ([[1, 2], [3]], [0], "pairs of arrays"),
    ],
)
def test_arrays_that_do_not_serve_are_refused(images, labels, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        from_arrays((images, labels), (images, labels))


class Listed(Dataset):
    def __init__(self, samples: list) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int):
        return self.samples[index]


def test_tensor_datasets() -> None:
    images = torch.from_numpy(pixels(4, 3, 8, 8))
    dataset = TensorDataset(images, torch.tensor(LABELS))
    data = from_torch(dataset, dataset)
    assert np.array_equal(data.train.images, images.numpy())
    assert data.train.labels.tolist() == LABELS


def test_float_tensors_stay_as_they_are() -> None:
    images = torch.rand(4, 3, 8, 8)
    dataset = TensorDataset(images, torch.tensor(LABELS))
    data = from_torch(dataset, dataset)
    assert np.array_equal(data.train.images, images.numpy())
    assert data.std == (1.0, 1.0, 1.0)


def test_pil_images_and_the_datasets_own_class_names() -> None:
    array = pixels(8, 5, 3)
    dataset = Listed([(Image.fromarray(array), 1), (Image.new("P", (5, 8)), 0)])
    dataset.classes = ["cat", "dog"]
    data = from_torch(dataset, dataset)
    assert data.classes == ("cat", "dog")
    assert np.array_equal(data.train.images[0], array.transpose(2, 0, 1))
    grey = Listed([(Image.new("L", (5, 8), 9), 0)])
    assert from_torch(grey, grey).shape == (1, 8, 5)


def test_arrays_with_channels_last() -> None:
    array = pixels(8, 5, 3)
    data = from_torch(Listed([(array, 0)]), Listed([(array, np.int64(1))]))
    assert np.array_equal(data.train.images[0], array.transpose(2, 0, 1))
    assert data.classes == ("0", "1")


class Endless(IterableDataset):
    def __iter__(self) -> Iterator:
        return iter([])


@pytest.mark.parametrize(
    ("dataset", "complaint"),
    [
        (Endless(), "needs a length"),
        (Listed([]), "empty"),
        (Listed([torch.zeros(3, 8, 8)]), "sample 0 must be a pair"),
        (Listed([(torch.zeros(1, 8, 8), 0), (torch.zeros(1, 8, 9), 0)]), "sample 1 differs"),
    ],
)
def test_datasets_that_do_not_serve_are_refused(dataset: Dataset, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        from_torch(dataset, dataset)
