"""Which samples a device trains on, batch after batch: the same for every engine."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.transforms import Draws, Preparation
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import RngKey
from fedtiny.errors import DataError

Batch = tuple[NDArray[np.int64], Draws]


def batch_size(shard: DeviceData, most: int) -> int:
    """Samples in a batch: a device that has fewer than a batch trains on one batch of all."""
    if len(shard) < 2:
        raise DataError("a device needs at least two samples to train with batch norm")
    return min(most, len(shard))


def training_epochs(
    shard: DeviceData, rng_key: RngKey, preparation: Preparation, *, epochs: int, most: int
) -> Iterator[Batch]:
    """The samples of each epoch of a local training, shuffled; the ragged last batch is dropped."""
    order, noise = rng_key.generator("permutation"), rng_key.generator("augmentation")
    size = batch_size(shard, most)
    full = slice(len(shard) // size * size)
    for _ in range(epochs):
        shuffled = order.permutation(shard.indices)
        draws = preparation.draws(noise, len(shard))
        yield shuffled[full], draws[full]


def training_batches(
    shard: DeviceData, rng_key: RngKey, preparation: Preparation, *, epochs: int, most: int
) -> Iterator[Batch]:
    """The batches of a local training, one at a time."""
    size = batch_size(shard, most)
    for samples, draws in training_epochs(shard, rng_key, preparation, epochs=epochs, most=most):
        for start in range(0, len(samples), size):
            part = slice(start, start + size)
            yield samples[part], draws[part]


def training_steps(shard: DeviceData, *, epochs: int, most: int) -> int:
    """How many batches a local training has."""
    return epochs * (len(shard) // batch_size(shard, most))


def gradient_batch(
    shard: DeviceData, rng_key: RngKey, preparation: Preparation, *, most: int
) -> tuple[Batch, int]:
    """The one batch that top-a gradients are measured on, and a seed for its dropout."""
    draw = rng_key.generator("gradient batch")
    size = min(most, len(shard))
    samples = draw.choice(shard.indices, size=size, replace=False)
    return (samples, preparation.draws(draw, size)), int(draw.integers(2**63))


def dropout_seed(rng_key: RngKey) -> int:
    """The seed of dropout in a local training."""
    return int(rng_key.generator("dropout").integers(2**63))


def measuring_parts(samples: int, most: int) -> int:
    """Number of batches that statistics are measured in: equal ones, never of one sample."""
    return max(1, min(-(-samples // most), samples // 2))
