"""Which image goes to which device, saved with the run."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtiny.config import Config
from fedtiny.data import DataSet, Partition
from fedtiny.data.images import balanced_choice
from fedtiny.data.partition import split as split_over_devices
from fedtiny.errors import DataError, RunError
from fedtiny.files import digest_of, write_atomically
from fedtiny.randomness import generator
from fedtiny.runs.folder import RunFolder


@dataclass(frozen=True, eq=False)
class Split:
    """The training set, shared out: the server's public images, and each device's own.

    `table` counts the devices' images by class; `checksum` is that of the images at their own
    size, and empty if it is not known.
    """

    public: NDArray[np.int64]
    devices: Partition
    table: NDArray[np.int64]
    checksum: bytes = b""


def hold_back(data: DataSet, config: Config) -> Split:
    """Hold the public one-shot set back; the devices have data of their own, unknown here."""
    devices = Partition((np.empty(0, dtype=np.int64),) * config.fleet.devices)
    return Split(
        _public(data, config), devices, devices.table(data.train.labels, len(data.classes))
    )


def _public(data: DataSet, config: Config) -> NDArray[np.int64]:
    """So many images of each class that has any."""
    size = config.data.n_shots * len(np.unique(data.train.labels))
    return balanced_choice(data.train.labels, size, generator(config.seed, "public"))


def share_out(data: DataSet, config: Config) -> Split:
    """Hold the public one-shot set back, and spread the rest over the devices."""
    labels, fleet = data.train.labels, config.fleet
    public = _public(data, config)
    if data.partition is not None:
        devices = _natural(data.partition, public, fleet.min_samples)
        return Split(public, devices, devices.table(labels, len(data.classes)))
    if fleet.partition == "natural":
        raise DataError(
            f"{data.name} does not say which device has a sample, as --fleet.partition natural "
            "asks; name a column with --data.device-column, or pass device_ids= or partition="
        )
    rest = np.setdiff1d(np.arange(len(labels)), public)
    if fleet.devices * fleet.min_samples > len(rest):
        raise DataError(
            f"the public set takes {len(public)} of your {len(labels)} training images and leaves "
            f"too few for {fleet.devices} devices with at least {fleet.min_samples} samples each; "
            "lower --data.n-shots, --fleet.devices or --fleet.min-samples, or give more images"
        )
    partition = split_over_devices(
        fleet.partition,
        labels[rest],
        fleet.devices,
        alpha=fleet.alpha,
        shards_per_device=fleet.shards_per_device,
        seed=config.seed,
        minimum=fleet.min_samples,
    )
    devices = Partition(tuple(rest[own] for own in partition.devices))
    return Split(public, devices, devices.table(labels, len(data.classes)))


def _natural(owned: Partition, public: NDArray[np.int64], minimum: int) -> Partition:
    """Each device's samples but the public ones; who has fewer than the minimum is left out."""
    own = [np.setdiff1d(device, public) for device in owned.devices]
    large = tuple(device for device in own if len(device) >= minimum)
    if not large:
        raise DataError(
            f"none of the {len(own)} devices that the data name has {minimum} samples or more "
            "beside the public ones; lower --fleet.min-samples or --data.n-shots"
        )
    return Partition(large)


def left_out(data: DataSet, split: Split, config: Config) -> tuple[str, ...]:
    """That some of the devices that the data name have too few samples, in a sentence."""
    named = len(data.partition) if data.partition is not None else 0
    few = named - len(split.devices)
    if few <= 0:
        return ()
    least = config.fleet.min_samples
    return (f"{few} of the {named} devices that the data name have fewer than {least} samples",)


def with_checksum(split: Split, data: DataSet) -> Split:
    """The split with a checksum that other images or labels would change."""
    parts = {"train": data.train, "test": data.test}
    arrays = {name: part.images for name, part in parts.items()}
    arrays |= {f"{name} labels": part.labels for name, part in parts.items()}
    kinds = " ".join(f"{array.dtype}{array.shape}" for array in arrays.values())
    return replace(split, checksum=bytes.fromhex(digest_of(arrays, kinds)))


def checked(split: Split, data: DataSet) -> Split:
    """The split of a run that goes on, which must fit the data it is given."""
    again = with_checksum(split, data)
    if not _fits(split, data) or split.checksum not in (b"", again.checksum):
        raise RunError(
            f"the data set '{data.name}' is not the one that this run was started with; "
            "give it the same images and labels in the same order"
        )
    return again


def _fits(split: Split, data: DataSet) -> bool:
    """Whether the split's images are there, of the classes that they had."""
    indices, _ = split.devices.flat()
    if max(indices.max(initial=0), split.public.max(initial=0)) >= len(data.train):
        return False
    table = split.devices.table(data.train.labels, len(data.classes))
    return np.array_equal(table, split.table)


def save_split(folder: RunFolder, split: Split) -> None:
    """Write the split."""
    indices, offsets = split.devices.flat()
    tensors = {
        "public": split.public,
        "indices": indices,
        "offsets": offsets,
        "table": split.table,
        "seal": np.frombuffer(split.checksum, dtype=np.uint8),
    }
    write_atomically(folder.partition, save(tensors))


def load_split(folder: RunFolder) -> Split:
    """Read the split of a run."""
    try:
        tensors: dict[str, NDArray[Any]] = load(folder.partition.read_bytes())
    except (OSError, SafetensorError) as error:
        raise RunError(f"{folder.partition} is missing or damaged") from error
    if not tensors.keys() >= {"public", "indices", "offsets", "table"}:
        raise RunError(f"{folder.partition} is not a partition")
    devices = Partition.from_flat(tensors["indices"], tensors["offsets"])
    checksum = tensors["seal"].tobytes() if "seal" in tensors else b""
    return Split(tensors["public"], devices, tensors["table"], checksum)
