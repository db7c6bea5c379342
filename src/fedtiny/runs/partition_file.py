"""Which image went to which device, saved with the run."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtiny.data import DataSet, Partition
from fedtiny.errors import RunError
from fedtiny.runs.folder import RunFolder, write_atomically


@dataclass(frozen=True, eq=False)
class Split:
    """The training set, shared out: the server's public images, and each device's own."""

    public: NDArray[np.int64]
    devices: Partition


def save_split(folder: RunFolder, split: Split, data: DataSet) -> None:
    """Write the split, with the number of images by device and class."""
    indices, offsets = split.devices.flat()
    tensors = {
        "public": split.public,
        "indices": indices,
        "offsets": offsets,
        "table": split.devices.table(data.train.labels, len(data.classes)),
    }
    write_atomically(folder.partition, save(tensors))


def load_split(folder: RunFolder) -> Split:
    """Read the split of a run."""
    tensors = _read(folder)
    return Split(tensors["public"], Partition.from_flat(tensors["indices"], tensors["offsets"]))


def load_table(folder: RunFolder) -> NDArray[np.int64]:
    """The number of images by device and class of a run."""
    return _read(folder)["table"]


def _read(folder: RunFolder) -> dict[str, NDArray[np.int64]]:
    try:
        tensors: dict[str, NDArray[np.int64]] = load(folder.partition.read_bytes())
    except (OSError, SafetensorError) as error:
        raise RunError(f"{folder.partition} is missing or damaged") from error
    if not tensors.keys() >= {"public", "indices", "offsets", "table"}:
        raise RunError(f"{folder.partition} is not a partition")
    return tensors
