"""The data of one device."""

import hashlib
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtiny.data import ImageSet
from fedtiny.errors import DataError
from fedtiny.randomness import generator

MARK, VERSION = b"FTdd", 1
HEAD = 12  # numbers at the start, the mark among them
NUMBERED = 12  # bytes at the start: mark, version, number of the device
KINDS = (np.dtype(np.uint8), np.dtype(np.float32))
WRITTEN = ("<u1", "<f4")
NO_DEVICE = 2**32 - 1  # of data that any device may have


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
        """The device's own images and labels, and no others', as the program of a device reads it.

        See `docs/device_program.md` for the format: whole numbers of 32 bits, little-endian.
        """
        own, places = np.unique(
            np.concatenate([self.indices, self.development]), return_inverse=True
        )
        data = self.data.subset(own)
        counts = (len(own), len(self.indices), len(self.development))
        kind = KINDS.index(data.images.dtype)
        head = (VERSION, self.device, *counts, *data.shape, len(data.classes), kind, 0)
        numbers = np.concatenate([head, places.reshape(-1), data.labels]).astype("<u4")
        content = b"".join([MARK, numbers.tobytes(), data.images.astype(WRITTEN[kind]).tobytes()])
        content += bytes(-len(content) % 4)
        return content + zlib.crc32(content).to_bytes(4, "little")

    @property
    def digest(self) -> str:
        """What tells these samples from others, whichever number the device has."""
        return hashlib.blake2b(self.to_bytes()[NUMBERED:-4], digest_size=8).hexdigest()

    @classmethod
    def from_bytes(cls, packed: bytes) -> "DeviceData":
        """What such bytes hold, with its images numbered anew and its classes named by numbers."""
        content, checksum = packed[:-4], packed[-4:]
        if content[:4] != MARK or zlib.crc32(content) != int.from_bytes(checksum, "little"):
            raise DataError("this is no data of a device, or it was damaged on its way")
        numbers = np.frombuffer(content[4 : len(content) // 4 * 4], "<u4").astype(np.int64)
        version, device, count, samples, measured, *rest = numbers[: HEAD - 1]
        if version != VERSION:
            raise DataError(f"the data of a device has format {version}; {VERSION} is known here")
        shape, classes, kind = rest[:3], int(rest[3]), int(rest[4])
        indices, development, labels, _ = np.split(
            numbers[HEAD - 1 :], np.cumsum([samples, measured, count])
        )
        start = 4 * (HEAD + samples + measured + count)
        images = np.frombuffer(content, WRITTEN[kind], count * np.prod(shape), int(start))
        images = images.astype(KINDS[kind]).reshape(count, *shape)
        names = tuple(map(str, range(classes)))
        return cls(int(device), ImageSet(images, labels, names), indices, development)


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
