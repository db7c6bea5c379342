"""The batched augmentation equals a plain one that takes sample after sample."""

import numpy as np
import pytest
import torch

from fedtiny.data import load
from fedtiny.devices.torch_layers import Draws, Transform

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def plain(transform: Transform, image: np.ndarray, draws: Draws, index: int) -> np.ndarray:
    """One sample: pad with black, crop, flip, normalise, cut out."""
    _, height, width = image.shape
    padding = transform.crop_padding
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
    row, column = draws.crops[index]
    moved = padded[:, row : row + height, column : column + width]
    if transform.flips and draws.flips[index]:
        moved = moved[:, :, ::-1]
    unit = 255 if image.dtype == np.uint8 else 1
    mean, std = (np.array(values)[:, None, None] for values in (transform.mean, transform.std))
    normal = (moved / unit - mean) / std
    if transform.cutout:
        top, left = (
            int(part * size) - transform.cutout // 2
            for part, size in zip(draws.centres[index], (height, width), strict=True)
        )
        bottom, right = top + transform.cutout, left + transform.cutout
        normal[:, max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = 0
    return normal


def batch(dtype: type, n: int = 40, height: int = 12, width: int = 10) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 256, (n, 3, height, width))
    return (values / 255).astype(np.float32) if dtype is np.float32 else values.astype(np.uint8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    ("crop_padding", "flips", "cutout"),
    [(4, True, 0), (0, True, 0), (3, False, 0), (0, False, 5), (4, True, 4), (1, True, 9)],
)
def test_augment_equals_the_plain_one(device, dtype, crop_padding, flips, cutout) -> None:
    transform = Transform(MEAN, STD, crop_padding, flips, cutout)
    images = batch(dtype)
    draws = transform.draws(np.random.default_rng(1), len(images))
    ours = transform.augment(torch.from_numpy(images).to(device), draws)
    theirs = np.stack([plain(transform, image, draws, i) for i, image in enumerate(images)])
    assert ours.dtype == torch.float32
    assert np.allclose(ours.cpu().numpy(), theirs, atol=1e-5)


def test_augment_with_nothing_to_do_equals_normalise() -> None:
    transform = Transform(MEAN, STD)
    images = torch.from_numpy(batch(np.uint8))
    draws = transform.draws(np.random.default_rng(0), len(images))
    assert torch.equal(transform.augment(images, draws), transform.normalise(images))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_images_given_are_left_alone(dtype: type) -> None:
    transform = Transform(MEAN, STD, cutout=6)
    images = torch.from_numpy(batch(dtype))
    before = images.clone()
    transform.augment(images, transform.draws(np.random.default_rng(0), len(images)))
    assert torch.equal(images, before)


def test_normalised_training_images_have_mean_0_and_std_1() -> None:
    data = load("digits")
    normal = Transform.of(data).normalise(torch.from_numpy(data.train.images))
    assert normal.mean().item() == pytest.approx(0, abs=1e-4)
    assert normal.std().item() == pytest.approx(1, abs=1e-3)


def test_a_slice_of_the_draws_belongs_to_a_slice_of_the_images() -> None:
    transform = Transform(MEAN, STD, 4, True, 4)
    images = torch.from_numpy(batch(np.uint8))
    draws = transform.draws(np.random.default_rng(2), len(images))
    whole = transform.augment(images, draws)
    chosen = np.array([7, 3, 30])
    assert torch.equal(transform.augment(images[chosen], draws[chosen]), whole[chosen])
    assert torch.equal(transform.augment(images[:9], draws[:9]), whole[:9])
    assert len(draws[:9]) == 9


def test_draws_cover_every_crop_and_flip_half() -> None:
    draws = Transform(MEAN, STD, 4, True).draws(np.random.default_rng(0), 2000)
    assert set(draws.crops.reshape(-1).tolist()) == set(range(9))
    assert 0.45 < draws.flips.mean() < 0.55
    assert not Transform(MEAN, STD, 4, False).draws(np.random.default_rng(0), 50).flips.any()


def test_the_transform_of_a_data_set() -> None:
    data = load("digits")
    training = Transform.of(data, cutout=2)
    assert (training.crop_padding, training.flips, training.cutout) == (0, False, 2)
    plainly = Transform.of(data, augment=False, cutout=2)
    assert (plainly.crop_padding, plainly.flips, plainly.cutout) == (0, False, 0)


def test_everything_happens_on_the_device_of_the_images() -> None:
    """Tensors on the ``meta`` device refuse to mix with those of another."""
    transform = Transform(MEAN, STD, 4, True, 4)
    draws = transform.draws(np.random.default_rng(0), 5)
    images = torch.empty((5, 3, 8, 8), dtype=torch.uint8, device="meta")
    assert transform.augment(images, draws).device.type == "meta"
