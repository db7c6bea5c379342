"""Which image went to which device, saved with the run."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtiny.data import Partition
from fedtiny.errors import RunError
from fedtiny.runs.folder import RunFolder, write_atomically


@dataclass(frozen=True, eq=False)
class Split:
    """The training set, shared out: the server's public images, and each device's own.

    `table` counts the devices' images by class.
    """

    public: NDArray[np.int64]
    devices: Partition
    table: NDArray[np.int64]


def save_split(folder: RunFolder, split: Split) -> None:
    """Write the split."""
    indices, offsets = split.devices.flat()
    tensors = {
        "public": split.public,
        "indices": indices,
        "offsets": offsets,
        "table": split.table,
    }
    write_atomically(folder.partition, save(tensors))


def load_split(folder: RunFolder) -> Split:
    """Read the split of a run."""
    tensors = _read(folder)
    devices = Partition.from_flat(tensors["indices"], tensors["offsets"])
    return Split(tensors["public"], devices, tensors["table"])


def _read(folder: RunFolder) -> dict[str, NDArray[np.int64]]:
    try:
        tensors: dict[str, NDArray[np.int64]] = load(folder.partition.read_bytes())
    except (OSError, SafetensorError) as error:
        raise RunError(f"{folder.partition} is missing or damaged") from error
    if not tensors.keys() >= {"public", "indices", "offsets", "table"}:
        raise RunError(f"{folder.partition} is not a partition")
    return tensors
