"""Measure the mean and standard deviation of each channel."""

import numpy as np

from fedtiny.data.array import Array

CHUNK = 4096  # images counted at once, so that a memory-mapped set stays on disk


def channel_statistics(images: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel in units of 0..1; 0 and 1 for float images, left as they are.

    >>> pair = np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1)
    >>> channel_statistics(pair)
    ((0.5,), (0.5,))
    """
    channels = images.shape[1]
    if images.dtype != np.uint8:
        return (0.0,) * channels, (1.0,) * channels
    measured = [_mean_and_std(_histogram(images, channel)) for channel in range(channels)]
    return tuple(mean for mean, _ in measured), tuple(std for _, std in measured)


def _histogram(images: Array, channel: int) -> Array:
    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(images), CHUNK):
        values = images[start : start + CHUNK, channel].reshape(-1)
        counts += np.bincount(values, minlength=256)
    return counts


def _mean_and_std(counts: Array) -> tuple[float, float]:
    values = np.arange(256) / 255
    mean = float(np.average(values, weights=counts))
    variance = float(np.average((values - mean) ** 2, weights=counts))
    return mean, variance**0.5 or 1.0  # a channel of one value is left unscaled
