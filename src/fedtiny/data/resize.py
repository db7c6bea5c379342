"""Resize images with bilinear weights, smoothed where they shrink."""

from typing import Any

import numpy as np

from fedtiny.data.array import Array
from fedtiny.errors import DataError

CHUNK = 1024  # images resized at once, so that float copies stay small


def resize(images: Array, size: int) -> Array:
    """Images [N, C, H, W] at ``size`` x ``size``, of the same dtype.

    >>> resize(np.full((1, 1, 2, 2), 7, dtype=np.uint8), 3)[0, 0].tolist()
    [[7, 7, 7], [7, 7, 7], [7, 7, 7]]
    """
    if size < 1:
        raise DataError(f"images can be resized to 1 pixel or more, not to {size}")
    rows = bilinear_weights(images.shape[2], size)
    columns = bilinear_weights(images.shape[3], size)
    resized = np.empty((*images.shape[:2], size, size), dtype=images.dtype)
    for start in range(0, len(images), CHUNK):
        exact = rows @ images[start : start + CHUNK].astype(np.float32) @ columns.T
        resized[start : start + CHUNK] = _as_dtype(exact, images.dtype)
    return resized


def bilinear_weights(old: int, new: int) -> Array:
    """The [new, old] matrix that resizes a line of pixels, pixel centres at half steps."""
    scale = old / new
    centres = (np.arange(new) + 0.5) * scale - 0.5
    distances = np.abs(np.arange(old) - centres[:, None]) / max(scale, 1.0)
    weights = np.maximum(1.0 - distances, 0.0)
    normal: Array = weights / weights.sum(axis=1, keepdims=True)
    return normal.astype(np.float32)


def _as_dtype(exact: Array, dtype: np.dtype[Any]) -> Array:
    if dtype == np.uint8:
        return np.clip(np.rint(exact), 0, 255).astype(np.uint8)
    return exact.astype(dtype, copy=False)
