"""A node that stands for a device without Python: `fedtiny gateway` holds the device."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from fedtiny.devices.place_names import place_of
from fedtiny.devices.remote_devices import RemoteDevice
from fedtiny.errors import FedTinyError
from fedtiny.federation import wire
from fedtiny.federation.messages import Reply, Request
from fedtiny.flower.node_log import NodeError
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.sparse.theta import Theta

GATEWAY = "gateway"  # HOST:PORT or HOST:PORT?ca=FILE in the config of a node


def is_behind(node: Mapping[str, Any]) -> bool:
    """Whether the node's device is behind a gateway."""
    return GATEWAY in node


def connected(spec: NodeSpec, number: int | None, node: Mapping[str, Any]) -> RemoteDevice:
    """The device, told of the run."""
    if spec.session:
        raise NodeError(
            "a device behind a gateway cannot mask its replies: run without "
            "--privacy.secure-aggregation, or start the node without gateway"
        )
    if spec.device.graph is None:
        raise NodeError(
            "the devices of this run compute in PyTorch, which those behind a gateway do not have: "
            'run it with device_backend="native"'
        )
    place = place_of(f"gateway://{node[GATEWAY]}")
    device = RemoteDevice(number, place, spec.config.device.timeout)
    try:
        device.check(spec.shape, len(spec.classes))
        device.equip(spec.device)
    except BaseException:
        device.close()
        raise
    return device


def answer(
    spec: NodeSpec,
    number: int,
    node: Mapping[str, Any],
    request: Request,
    held: Theta | None,
) -> Reply:
    """What the device answers; it may hold the theta of the message before."""
    with closing(connected(spec, number, node)) as device:
        device.known = wire.Known.of(held) if held else wire.NOTHING_KNOWN
        found = device.answer(request)
    if isinstance(found, FedTinyError):
        raise found
    return found
