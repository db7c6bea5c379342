"""Batches cut on the GPU are those that the reference transform makes, bit for bit."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtiny.data import ImageSet
from fedtiny.devices.gpu.image_store import COLUMNS, Images, ImageStore
from fedtiny.devices.torch_layers import Transform

from .rig import CPU

few = settings(max_examples=40)


def image_set(shape, count=9, floats=False, seed=0):
    """Some images of this shape, of bytes or of floats."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 256, (count, *shape)).astype(np.uint8)
    if floats:
        pixels = draw.random((count, *shape), dtype=np.float32)
    return ImageSet(pixels, draw.integers(0, 2, count), ("a", "b"))


def transform(channels, padding=0, flips=False, cutout=0):
    mean, std = (0.1307, 0.48, 0.45)[:channels], (0.3081, 0.25, 0.2)[:channels]
    return Transform(mean, std, padding, flips, cutout)


def both_ways(data, how, samples, seed=0):
    """The batch that the reference makes, and the one that is cut on the GPU."""
    draws = how.draws(np.random.default_rng(seed), len(samples))
    pixels, labels = (torch.from_numpy(a)[samples] for a in (data.images, data.labels))
    images = Images(data, how, CPU)
    cut = images.cut(torch.from_numpy(images.plan(samples, draws)))
    return (how.augment(pixels, draws), labels), cut


@few
@given(
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(2, 9), st.integers(2, 9)),
    padding=st.integers(0, 4),
    flips=st.booleans(),
    cutout=st.integers(0, 7),
    floats=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_batch_cut_on_the_gpu_is_the_augmented_one(shape, padding, flips, cutout, floats, seed):
    data, how = image_set(shape, floats=floats), transform(shape[0], padding, flips, cutout)
    samples = np.random.default_rng(seed).integers(0, len(data), 12)
    (expected, labels), (found, found_labels) = both_ways(data, how, samples, seed)
    assert found.shape == expected.shape
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert torch.equal(found_labels, labels)


@few
@given(
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(2, 9), st.integers(2, 9)),
    padding=st.integers(0, 4),
    floats=st.booleans(),
)
def test_a_plain_batch_is_the_normalised_one(shape, padding, floats):
    data, how = image_set(shape, floats=floats), transform(shape[0], padding, True, 3)
    samples = torch.tensor([3, 0, 3, 8])
    found, labels = Images(data, how, CPU).plain(samples)
    assert torch.equal(found, how.normalise(torch.from_numpy(data.images)[samples]))
    assert torch.equal(labels, torch.from_numpy(data.labels)[samples])


def test_a_crop_reads_black_beyond_the_border():
    data = ImageSet(np.full((1, 1, 4, 4), 255, np.uint8), np.zeros(1, np.int64), ("a", "b"))
    images = Images(data, Transform((0.0,), (1.0,), crop_padding=2), CPU)
    plan = torch.tensor([[0, 0, 1, 0, 0, 0]], dtype=torch.int32)  # two rows up, one column left
    batch, _ = images.cut(plan)
    expected = torch.zeros(4, 4)
    expected[2:, 1:] = 1.0
    assert torch.equal(batch[0, 0], expected)


def test_a_hole_is_where_the_plan_says_after_the_image_is_mirrored():
    pixels = np.arange(12, dtype=np.uint8).reshape(1, 1, 3, 4)
    data = ImageSet(pixels, np.zeros(1, np.int64), ("a", "b"))
    images = Images(data, Transform((0.0,), (1 / 255,), flips=True, cutout=2), CPU)
    batch, _ = images.cut(torch.tensor([[0, 0, 0, 1, -1, 1]], dtype=torch.int32))
    assert batch[0, 0].round().tolist() == [[3, 0, 0, 0], [7, 6, 5, 4], [11, 10, 9, 8]]


def test_a_plan_has_a_row_for_each_sample_in_their_order():
    data, how = image_set((1, 6, 5)), transform(1, 2, True, 3)
    draws = how.draws(np.random.default_rng(0), 4)
    plan = Images(data, how, CPU).plan(np.array([7, 1, 1, 0]), draws)
    assert (plan.shape, plan.dtype) == ((4, COLUMNS), np.int32)
    assert plan[:, 0].tolist() == [7, 1, 1, 0]
    assert plan[:, 1:3].tolist() == draws.crops.tolist()
    assert plan[:, 3].tolist() == draws.flips.tolist()


def test_a_batch_lies_as_tensor_cores_want_it():
    data, how = image_set((3, 6, 5)), transform(3, 1)
    _, (batch, _) = both_ways(data, how, np.arange(4))
    assert batch.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_lies_as_the_reference_has_it_where_that_is_asked_for(channels):
    data, how = image_set((channels, 6, 5)), transform(channels, 1)
    images = Images(data, how, CPU, channels_last=False)
    draws = how.draws(np.random.default_rng(0), 4)
    cut, _ = images.cut(torch.from_numpy(images.plan(np.arange(4), draws)))
    plain, _ = images.plain(torch.arange(4))
    for batch in (cut, plain):
        assert batch.stride() == (30 * channels, 30, 5, 1)  # of one channel too


@pytest.mark.parametrize("floats", [False, True])
def test_images_stay_as_small_as_they_were_given(floats):
    data = image_set((1, 6, 5), floats=floats)
    assert Images(data, transform(1), CPU).pixels.dtype == torch.from_numpy(data.images).dtype


def test_a_gallery_holds_each_set_once_and_knows_it_again():
    training, test, how = image_set((1, 4, 4)), image_set((1, 4, 4), seed=1), transform(1)
    image_store = ImageStore([training, test, training], how, CPU)
    assert image_store[training] is image_store[training]
    assert image_store[test] is not image_store[training]
    assert torch.equal(image_store[test].labels, torch.from_numpy(test.labels))
