"""Labelled images: what is refused, subsets, limits and resizing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedtiny.data import DataSet, ImageSet
from fedtiny.data.images import balanced_choice, channel_statistics, hold_out, resize
from fedtiny.errors import DataError

CLASSES = ("cat", "dog", "owl")


def image_set(labels: list[int], size: int = 8) -> ImageSet:
    """Images whose every pixel is their index."""
    count = len(labels)
    images = np.arange(count, dtype=np.uint8)[:, None, None, None]
    filled = np.broadcast_to(images, (count, 1, size, size)).copy()
    return ImageSet(filled, np.array(labels, dtype=np.int64), CLASSES)


def data_set(train: list[int], test: list[int]) -> DataSet:
    return DataSet("tiny", image_set(train), image_set(test), (0.5,), (0.25,), False, 1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"images": np.zeros((3, 8, 8), np.uint8)}, r"\[N, C, H, W\]"),
        ({"images": np.zeros((0, 1, 8, 8), np.uint8)}, "filled"),
        ({"images": np.zeros((3, 1, 8, 8), np.float64)}, "float64"),
        ({"labels": np.zeros(2, np.int64)}, "3 samples"),
        ({"labels": np.zeros(3, np.int32)}, "int32"),
        ({"labels": np.array([0, 1, 3])}, "from 0 to 2"),
        ({"labels": np.array([0, -1, 2])}, "from -1"),
    ],
)
def test_an_image_set_refuses_what_does_not_fit(changes: dict, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        replace(image_set([0, 1, 2]), **changes)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"mean": (0.5, 0.5)}, "one mean"),
        ({"std": (0.0,)}, "above 0"),
        ({"crop_padding": -1}, "crop_padding"),
        ({"test": image_set([0], size=9)}, "alike"),
        ({"test": replace(image_set([0]), classes=("a", "b"))}, "same classes"),
    ],
)
def test_a_data_set_refuses_what_does_not_fit(changes: dict, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        replace(data_set([0, 1], [2]), **changes)


def test_a_subset_keeps_images_and_labels_together() -> None:
    subset = image_set([0, 1, 2, 1]).subset([3, 0])
    assert subset.images[:, 0, 0, 0].tolist() == [3, 0]
    assert subset.labels.tolist() == [1, 0]


def test_limited_is_even_over_classes_and_repeatable() -> None:
    data = data_set([0] * 20 + [1] * 20 + [2] * 2, [0] * 9)
    small = data.limited(12, 3, seed=5)
    assert np.bincount(small.train.labels).tolist() == [5, 5, 2]
    assert len(small.test) == 3
    again = data.limited(12, 3, seed=5)
    assert np.array_equal(small.train.images, again.train.images)
    other = data.limited(12, 3, seed=6)
    assert not np.array_equal(small.train.images, other.train.images)


def test_limited_without_a_limit_changes_nothing() -> None:
    data = data_set([0, 1], [2])
    assert data.limited(None, 100, seed=0).train is data.train
    assert data.limited(None, 100, seed=0).test is data.test
    with pytest.raises(DataError, match="not to 0"):
        data.limited(0, None, seed=0)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.data())
def test_balanced_choice_takes_from_the_fullest_classes_last(labels: list, data) -> None:
    size = data.draw(st.integers(1, len(labels)))
    chosen = balanced_choice(np.array(labels), size, np.random.default_rng(0))
    taken = np.bincount(np.array(labels)[chosen], minlength=5)
    available = np.bincount(labels, minlength=5)
    assert len(set(chosen.tolist())) == size
    for label in range(5):
        assert taken[label] == available[label] or taken[label] >= taken.max() - 1


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_hold_out_parts_every_class(labels: list) -> None:
    array = np.array(labels)
    train, test = hold_out(array, 0.2, np.random.default_rng(0))
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in set(labels):
        count, held = labels.count(label), int(np.sum(array[test] == label))
        assert held == (0 if count == 1 else max(1, round(count * 0.2)))


def test_resized_scales_the_padding_and_keeps_the_labels() -> None:
    big = data_set([0, 1], [2]).resized(32)
    assert big.shape == (1, 32, 32)
    assert big.crop_padding == 4
    assert big.train.labels.tolist() == [0, 1]
    assert big.resized(32) is big
    with pytest.raises(DataError, match="not to 0"):
        big.resized(0)


@pytest.mark.parametrize(("old", "new"), [((8, 8), 32), ((32, 32), 12), ((9, 14), 11)])
def test_resize_equals_pillow(old: tuple[int, int], new: int) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 1, *old), dtype=np.uint8)
    ours = resize(images, new)
    for index in range(3):
        theirs = Image.fromarray(images[index, 0]).resize((new, new), Image.Resampling.BILINEAR)
        assert np.abs(ours[index, 0].astype(int) - np.asarray(theirs).astype(int)).max() <= 1


def test_resize_keeps_float_images_float() -> None:
    resized = resize(np.full((2, 3, 4, 4), -1.5, dtype=np.float32), 7)
    assert resized.dtype == np.float32
    assert np.allclose(resized, -1.5)


def test_statistics_equal_numpy(random_images) -> None:
    images = random_images(50, size=5)
    mean, std = channel_statistics(images)
    assert np.allclose(mean, (images / 255).mean(axis=(0, 2, 3)))
    assert np.allclose(std, (images / 255).std(axis=(0, 2, 3)))


def test_statistics_leave_a_blank_channel_unscaled() -> None:
    assert channel_statistics(np.zeros((4, 1, 2, 2), np.uint8)) == ((0.0,), (1.0,))
