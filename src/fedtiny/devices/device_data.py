"""The data of one device."""

import io
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

    def to_bytes(self) -> bytes:
        """The device's own images and labels, and no others'."""
        own, places = np.unique(
            np.concatenate([self.indices, self.development]), return_inverse=True
        )
        data, packed = self.data.subset(own), io.BytesIO()
        np.savez(
            packed,
            device=self.device,
            images=data.images,
            labels=data.labels,
            classes=data.classes,
            indices=places[: len(self)],
            development=places[len(self) :],
        )
        return packed.getvalue()

    @classmethod
    def from_bytes(cls, packed: bytes) -> "DeviceData":
        """What such bytes hold, with its images numbered anew."""
        with np.load(io.BytesIO(packed), allow_pickle=False) as found:
            data = ImageSet(found["images"], found["labels"], tuple(map(str, found["classes"])))
            return cls(int(found["device"]), data, found["indices"], found["development"])


def shard(
    device: int, data: ImageSet, indices: NDArray[np.int64], ratio: float, seed: int
) -> DeviceData:
    """Give a device its data and draw its development set."""
    count = development_count(len(indices), ratio)
    draw = generator(seed, "development", device=device)
    development = np.sort(draw.choice(indices, size=count, replace=False))
    return DeviceData(device, data, indices, development)


def development_count(samples: int, ratio: float) -> int:
    """How many of so many samples a device measures with."""
    return min(samples, max(2, round(ratio * samples)))
