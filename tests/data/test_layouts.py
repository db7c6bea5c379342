"""Arrays of sequences and tables: declared, never guessed; and whose samples they are."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedtiny
from fedtiny.data import Partition, from_arrays
from fedtiny.data.images import input_shape
from fedtiny.data.transforms import ArrayTransform, Preparation
from fedtiny.devices.gpu.image_store import Images
from fedtiny.devices.torch_layers import Transform
from fedtiny.errors import DataError

LABELS = [0, 2, 1, 0]
SEQUENCES = np.random.default_rng(0).normal(3, 2, (4, 6, 10)).astype(np.float32)
ROWS = np.random.default_rng(1).normal(size=(4, 5))


def of(samples, **options):
    return from_arrays((samples, LABELS), (samples, LABELS), **options)


def test_a_sequence_is_an_image_of_one_row_and_read_as_it_was_declared():
    data = of(SEQUENCES, layout="NCT")
    assert (data.shape, data.input_shape, data.layout) == ((6, 1, 10), (6, 10), "NCT")
    np.testing.assert_array_equal(data.train.images[:, :, 0], SEQUENCES)
    turned = of(SEQUENCES.transpose(0, 2, 1), layout="NTC")
    np.testing.assert_array_equal(turned.train.images, data.train.images)


def test_a_row_of_a_table_is_an_image_of_one_pixel():
    data = of(ROWS, layout="NF")
    assert (data.shape, data.input_shape) == ((5, 1, 1), (5,))
    np.testing.assert_allclose(data.train.images[:, :, 0, 0], ROWS, rtol=1e-6)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC", "NHW"])
def test_images_may_be_declared_too(layout):
    images = np.zeros((4, 8, 9) if layout == "NHW" else (4, 3, 8, 9), np.uint8)
    shape = {"NCHW": (3, 8, 9), "NHWC": (9, 3, 8), "NHW": (1, 8, 9)}[layout]
    assert of(images, layout=layout).input_shape == shape


@pytest.mark.parametrize(
    ("samples", "layout", "complaint"),
    [
        (SEQUENCES, None, "pass layout='NCT' or 'NTC' for sequences, layout='NHW' for gray"),
        (SEQUENCES.astype(int), None, "does not say what its dimensions are"),
        (np.zeros((4, 6, 128), np.uint8), None, "pass layout='NCT' or 'NTC'.*--data.layout"),
        (np.zeros((4, 6, 128), int), None, "does not say what its dimensions are"),
        (np.zeros((4, 3, 8, 3)), None, "pass layout='NCHW' or 'NHWC'.*--data.layout"),
        (np.zeros((4, 3, 8, 3), np.uint8), None, "pass layout='NCHW' or 'NHWC'"),
        (np.zeros((4, 16, 8, 5)), None, "channels first or last"),
        (ROWS, None, "pass layout='NF' for rows of a table"),
        (ROWS.astype(np.uint8), None, "pass layout='NF' for rows of a table"),
        (ROWS, "NCT", r"shape \[4, 5\] is not NCT, which has 3 dimensions"),
        (ROWS, "TN", "no layout 'TN'; choose one of NCHW"),
        (np.full((4, 5), np.nan), "NF", "finite numbers"),
        (np.full((4, 5), "x"), "NF", "finite numbers"),
    ],
)
def test_what_could_be_two_things_or_does_not_fit_is_refused(samples, layout, complaint):
    with pytest.raises(DataError, match=complaint):
        of(samples, layout=layout)


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (np.eye(4, dtype=int), "multi-label targets are not supported"),
        ([0.5, 1, 2, 0], "regression targets are not supported"),
        (["a", "b", "c", "d"], "whole numbers from 0, .* for names, number them and pass classes="),
    ],
)
def test_targets_that_are_no_classes_are_named(labels, complaint):
    with pytest.raises(DataError, match=complaint):
        from_arrays((ROWS, labels), (ROWS, labels), layout="NF")


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ((4, 3, 8, 9), (3, 8, 9)),
        ((4, 8, 9, 3), (3, 8, 9)),
        ((4, 8, 8), (1, 8, 8)),
        ((4, 2, 1, 50), (2, 1, 50)),
    ],
)
def test_images_that_can_be_nothing_else_need_no_layout(shape, read):
    assert of(np.zeros(shape, np.uint8)).input_shape == read


def test_every_channel_is_normalized_by_the_training_samples():
    data = of(SEQUENCES, layout="NCT")
    np.testing.assert_allclose(data.mean, SEQUENCES.mean(axis=(0, 2)), rtol=1e-5)
    np.testing.assert_allclose(data.std, SEQUENCES.std(axis=(0, 2)), rtol=1e-5)
    constant = of(np.ones((4, 2, 3), np.float32), layout="NCT")
    assert constant.std == (1.0, 1.0)


def test_nothing_but_images_of_bytes_is_augmented_unless_it_is_asked_for():
    data = of(SEQUENCES, layout="NCT")
    assert Preparation.of(data, augment=True, cutout=3) == Preparation(
        data.mean, data.std, layout="NCT"
    )
    floats, pixels = np.zeros((4, 1, 16, 16)), np.zeros((4, 1, 16, 16), np.uint8)
    assert (of(floats).crop_padding, of(pixels).crop_padding) == (0, 2)
    assert of(floats, crop_padding=2).crop_padding == 2
    with pytest.raises(DataError, match="for images"):
        of(SEQUENCES, layout="NCT", crop_padding=2)


@pytest.mark.parametrize(("samples", "layout"), [(SEQUENCES, "NCT"), (ROWS, "NF")])
def test_every_engine_reads_the_same_numbers(samples, layout):
    data = of(samples, layout=layout)
    preparation = Preparation.of(data)
    images = data.train.images
    held = ArrayTransform(*vars(preparation).values()).normalise(images)
    read = Transform(*vars(preparation).values()).normalise(torch.from_numpy(images))
    assert tuple(read.shape) == (4, *data.input_shape)
    np.testing.assert_array_equal(read.numpy(), held.reshape(read.shape))
    stored = Images(data.train, preparation, torch.device("cpu"))
    found, labels = stored.plain(torch.tensor([2, 0]))
    np.testing.assert_allclose(found.numpy(), read[[2, 0]].numpy(), rtol=1e-5, atol=1e-6)
    assert labels.tolist() == [1, 0]


def test_the_shape_that_a_network_reads():
    assert input_shape("NCHW", (3, 8, 9)) == (3, 8, 9)


# Whose samples


def test_ids_make_a_device_each_in_their_order():
    data = of(ROWS, layout="NF", device_ids=["bo", "al", "bo", "cy"])
    assert [device.tolist() for device in data.partition.devices] == [[1], [0, 2], [3]]


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        ([1, 2], "one device for each of 4 training samples"),
        ([0.5, 1, 2, 3], "one whole number or text"),
        (np.zeros((4, 2), int), "one whole number or text"),
    ],
)
def test_ids_that_name_no_device_are_refused(ids, complaint):
    with pytest.raises(DataError, match=complaint):
        of(ROWS, layout="NF", device_ids=ids)


def test_a_limited_set_keeps_who_has_what():
    rows, ids = np.arange(40.0)[:, None], np.arange(40) // 10
    data = from_arrays((rows, np.arange(40) % 2), (rows, np.arange(40) % 2), layout="NF")
    owned = replace(data, partition=Partition.by_ids(ids))
    for fewer in (owned.limited(12, None, seed=0), owned.validating(0.25, seed=0)):
        found = fewer.train.images[:, 0, 0, 0]
        assert sum(map(len, fewer.partition.devices)) == len(found)
        for device in fewer.partition.devices:
            assert len({int(value) // 10 for value in found[device]}) == 1


def test_a_partition_of_other_data_is_refused():
    with pytest.raises(DataError, match="names sample 4, but there are 4 training samples"):
        replace(of(ROWS, layout="NF"), partition=fedtiny.Partition((np.array([0, 4]),)))
