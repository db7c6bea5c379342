"""Which image goes to which device, saved with the run."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedtiny.config import Config
from fedtiny.config.flat import Flat
from fedtiny.data import DataSet, Partition
from fedtiny.data.images import balanced_choice
from fedtiny.data.partition import split as split_over_devices
from fedtiny.devices.device_data import DeviceData, shard
from fedtiny.errors import DataError, FedTinyError, RunError
from fedtiny.files import (
    MAX_TENSORS,
    digest_of,
    exact_json,
    metadata_of,
    parse_json,
    read_file,
    readable,
    write_atomically,
)
from fedtiny.randomness import generator
from fedtiny.runs.folder import RunFolder

METADATA = "fedtiny"
Tensors = dict[str, NDArray[Any]]


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
            f"the public set takes {len(public)} of your {len(labels)} training samples and leaves "
            f"too few for {fleet.devices} devices with at least {fleet.min_samples} samples each; "
            "lower --data.n-shots, --fleet.devices or --fleet.min-samples, or give more samples"
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


def shards_of(data: DataSet, split: Split, config: Config) -> tuple[DeviceData, ...]:
    """The data of every device."""
    ratio = config.selection.development_ratio
    return tuple(
        shard(device, data.train, own, ratio, config.seed)
        for device, own in enumerate(split.devices.devices)
    )


def left_out(data: DataSet, split: Split, config: Config) -> tuple[str, ...]:
    """That some of the devices that the data name have too few samples, in a sentence."""
    named = len(data.partition) if data.partition is not None else 0
    few = named - len(split.devices)
    if few <= 0 or not split.table.any():  # devices with data of their own
        return ()
    least = config.fleet.min_samples
    return (f"{few} of the {named} devices that the data name have fewer than {least} samples",)


def with_checksum(split: Split, data: DataSet) -> Split:
    """The split with the checksum of its data."""
    return replace(split, checksum=bytes.fromhex(checksum_of(data)))


def checksum_of(data: DataSet) -> str:
    """What other images or labels would change."""
    parts = {"train": data.train, "test": data.test}
    arrays = {name: part.images for name, part in parts.items()}
    arrays |= {f"{name} labels": part.labels for name, part in parts.items()}
    kinds = " ".join(f"{array.dtype}{array.shape}" for array in arrays.values())
    return digest_of(arrays, kinds)


def checked(split: Split, data: DataSet) -> Split:
    """The split of a run that goes on, which must fit the data it is given."""
    again = with_checksum(split, data)
    if not _fits(split, data) or split.checksum != again.checksum:
        raise RunError(
            f"the data set '{data.name}' is not the one that this run was started with; "
            "give it the same samples and labels in the same order"
        )
    return again


def _fits(split: Split, data: DataSet) -> bool:
    """Whether the split's images are there, of the classes that they had."""
    indices, _ = split.devices.flat()
    if max(indices.max(initial=0), split.public.max(initial=0)) >= len(data.train):
        return False
    table = split.devices.table(data.train.labels, len(data.classes))
    return np.array_equal(table, split.table)


def save_split(folder: RunFolder, split: Split, settings: Flat) -> None:
    """Write the split, with the settings that it was made for and a checksum of it all."""
    indices, offsets = split.devices.flat()
    tensors = {
        "public": split.public,
        "indices": indices,
        "offsets": offsets,
        "table": split.table,
        "seal": np.frombuffer(split.checksum, dtype=np.uint8),
    }
    text = json.dumps({"settings": settings, "kinds": _kinds(tensors)})
    signed = json.dumps({"text": text, "digest": digest_of(tensors, text)})
    write_atomically(folder.partition, save(tensors, {METADATA: signed}))


def load_split(folder: RunFolder) -> Split:
    """Read the split of a run."""
    return read_split(folder)[0]


def read_split(folder: RunFolder) -> tuple[Split, Flat]:
    """The split of a run and the settings it was begun with."""
    path = folder.partition
    with readable(path):
        data = read_file(path, MAX_TENSORS)
    try:
        tensors: Tensors = load(data)
        return _split_of(tensors), _signed_settings(data, tensors)
    except (SafetensorError, FedTinyError, *NOT_OURS) as error:
        raise RunError(f"{path} is damaged") from error


NOT_OURS = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""What reading a file raises that was not written by fedtiny."""


def _split_of(tensors: Tensors) -> Split:
    dimensions = {"public": 1, "indices": 1, "offsets": 1, "table": 2}
    for name, count in dimensions.items():
        if tensors[name].dtype != np.int64 or tensors[name].ndim != count:
            raise ValueError(f"'{name}' is of another kind")
    public, table = tensors["public"], tensors["table"]
    devices = Partition.from_flat(tensors["indices"], tensors["offsets"])
    if len(table) != len(devices) or min(table.min(initial=0), public.min(initial=0)) < 0:
        raise ValueError("the table does not fit the devices, or a number is negative")
    counts = devices.sizes
    if counts.any() and not counts.all():  # none has any where devices bring data of their own
        raise ValueError("a device has no samples")
    if not np.array_equal(table.sum(axis=1), counts):
        raise ValueError("the table counts other samples than the devices have")
    checksum = tensors["seal"].tobytes()
    return Split(public, devices, table, checksum)


def _signed_settings(data: bytes, tensors: Tensors) -> Flat:
    """The settings beside a split, whose checksum must fit."""
    signed = exact_json(metadata_of(data)[METADATA])
    if signed["digest"] != digest_of(tensors, signed["text"]):
        raise ValueError("the checksum is that of something else")
    told = parse_json(signed["text"])
    if told["kinds"] != _kinds(tensors) or not isinstance(told["settings"], dict):
        raise ValueError("the arrays are of another kind")
    return dict(told["settings"])


def _kinds(tensors: Tensors) -> dict[str, str]:
    return {name: f"{tensors[name].dtype}{tensors[name].shape}" for name in sorted(tensors)}
