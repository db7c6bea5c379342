"""The data of one device."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtiny.data import ImageSet
from fedtiny.randomness import generator


@dataclass(frozen=True)
class DeviceData:
    """Which images of a set are a device's own (D_k), and which of those it measures with.

    The development set never changes in a run. It holds at least two samples, since batch norm
    cannot measure one.
    """

    device: int
    data: ImageSet
    indices: NDArray[np.int64]
    development: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.indices)


def shard(
    device: int, data: ImageSet, indices: NDArray[np.int64], ratio: float, seed: int
) -> DeviceData:
    """Give a device its data and draw its development set."""
    count = min(len(indices), max(2, round(ratio * len(indices))))
    draw = generator(seed, "development", device=device)
    development = np.sort(draw.choice(indices, size=count, replace=False))
    return DeviceData(device, data, indices, development)
