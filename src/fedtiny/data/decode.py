"""Decode encoded images in batches, and name the one that cannot be decoded."""

from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtiny.data.array import Array
from fedtiny.errors import DataError
from fedtiny.extras import require

BATCH = 512


class Encoded(NamedTuple):
    """An encoded image, its label, and where it comes from in words."""

    image: Path | bytes
    label: int
    where: str


def decode(samples: Iterable[Encoded]) -> Iterator[tuple[Array, Array]]:
    """Batches of RGB images [N, 3, H, W] of one size, with their labels."""
    remaining = iter(samples)
    shape = None
    while batch := list(islice(remaining, BATCH)):
        images = [pixels(sample) for sample in batch]
        shape = shape or images[0].shape
        _check_one_size(images, batch, shape)
        yield np.stack(images), np.array([sample.label for sample in batch], dtype=np.int64)


def pixels(sample: Encoded) -> Array:
    """One image as uint8 [3, H, W]."""
    source = BytesIO(sample.image) if isinstance(sample.image, bytes) else sample.image
    image_module = require("PIL.Image", extra="data")
    try:
        with image_module.open(source) as image:
            deep = image.mode.startswith(("I", "F"))
            rgb = np.asarray(image.convert("RGB"))
    except Exception as broken:  # Pillow's readers raise many kinds on damaged files
        raise DataError(f"{sample.where} cannot be decoded ({broken}); replace it") from broken
    if deep:
        raise DataError(f"{sample.where} has more than 8 bits a channel; convert it to 8 bits")
    return rgb.transpose(2, 0, 1)


def _check_one_size(images: list[Array], batch: list[Encoded], shape: tuple[int, ...]) -> None:
    for image, sample in zip(images, batch, strict=True):
        if image.shape != shape:
            raise DataError(
                f"{sample.where} is {_size(image.shape)} where the first image is {_size(shape)}; "
                "resize all images to one size"
            )


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]}x{shape[1]}"
