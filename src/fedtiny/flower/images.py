"""The data of a node: its own, or its part of a named set for trials."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedtiny.data import ImageSet, load_own
from fedtiny.data.images import resize
from fedtiny.devices.device_data import DeviceData, shard
from fedtiny.errors import DataError
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.runs.inputs import load_data
from fedtiny.runs.split import Split, share_out

NodeConfig = Mapping[str, Any]


def shard_of(spec: NodeSpec, device: int, node: NodeConfig) -> DeviceData:
    """The device's data; its development set is the same for every message of a run."""
    if spec.own_data:
        images = _own_set(spec, _path(node))
        own = np.arange(len(images))
    else:
        part = _part(spec, node)
        images, split = _shared_set(spec, str(node.get("data-root", "")))
        own = split.devices.devices[part]
    return shard(device, images, own, spec.config.selection.development_ratio, spec.config.seed)


def claim(node: NodeConfig) -> int | None:
    """The device that a node wants to be, if it says so."""
    number = node.get("partition-id")
    return number if type(number) is int and number >= 0 else None


def _path(node: NodeConfig) -> Path:
    if "data" not in node:
        raise DataError(
            "this run takes nodes with data of their own: start them with "
            "--node-config 'data=\"PATH\"'"
        )
    return Path(str(node["data"])).expanduser()


def _part(spec: NodeSpec, node: NodeConfig) -> int:
    """Which part of the named set is the node's."""
    part, devices = claim(node), spec.config.fleet.devices
    parts = node.get("num-partitions", devices)
    if part is None or parts != devices or part >= devices:
        raise DataError(
            f"this run shares {spec.config.data.name} among {devices} nodes: start each with "
            f"--node-config 'partition-id=K num-partitions={devices}', K from 0 to {devices - 1}"
        )
    return part


@lru_cache(maxsize=1)  # a process of many nodes, as in a simulation, loads once
def _shared_set(spec: NodeSpec, root: str) -> tuple[ImageSet, Split]:
    config = spec.config
    if root:
        config = replace(config, data=replace(config.data, root=root))
    data = load_data(config)
    return data.train, share_out(data, config)


@lru_cache(maxsize=1)
def _own_set(spec: NodeSpec, path: Path) -> ImageSet:
    """The node's own images, at the size that the run's model takes."""
    found, (channels, height, width) = load_own(path, spec.classes), spec.shape
    if found.shape != spec.shape and found.shape[0] == channels and height == width:
        found = replace(found, images=resize(found.images, height))
    if found.shape != spec.shape:
        raise DataError(f"the images in {path} are {found.shape}, but the run's are {spec.shape}")
    return found
