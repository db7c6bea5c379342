"""A run as a node must know it, sent once as JSON."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fedtiny import __version__
from fedtiny.config import RunConfig
from fedtiny.data.images import input_shape
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import Engine
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.extras import require
from fedtiny.flower.node_log import NodeError
from fedtiny.models.param_spec import Shape
from fedtiny.runs.inputs import build_model


@dataclass(frozen=True, eq=False)
class NodeSpec:
    """A run as a node must know it: its device, and whose images of which shape and classes."""

    device: DeviceSpec
    own_data: bool
    shape: Shape
    classes: tuple[str, ...]
    session: bytes = b""
    """Under secure aggregation, what keys are signed for; a resumed run has another."""

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self.device.config

    def engine(self) -> Engine:
        """How the device computes: natively, or in PyTorch."""
        if self.device.graph:
            return NativeEngine(self.device)
        require("torch", extra="torch").set_num_threads(self.config.threads)
        from fedtiny.devices.torch_engine import TorchEngine

        reads = input_shape(self.device.preparation.layout, self.shape)
        model = build_model(self.config, reads, len(self.classes))
        return TorchEngine(model, self.device)

    @cached_property
    def text(self) -> str:
        """The spec as JSON."""
        plain = {
            "fedtiny": __version__,
            "own_data": self.own_data,
            "shape": self.shape,
            "classes": self.classes,
            "device": self.device.to_plain(),
        }
        return json.dumps(plain | ({"session": self.session.hex()} if self.session else {}))

    @cached_property
    def lasting_text(self) -> str:
        """The same without the session: what stays when a run is resumed."""
        return replace(self, session=b"").text

    @cached_property
    def key(self) -> str:
        """A short name for exactly this spec."""
        return key_of(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeSpec) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.key)

    @classmethod
    def from_text(cls, text: str) -> "NodeSpec":
        """The spec that such JSON says, if it is one of this version."""
        plain: Mapping[str, Any] = json.loads(text)
        if plain["fedtiny"] != __version__:
            raise NodeError(
                f"this node has fedtiny {__version__}, the server {plain['fedtiny']}; "
                "install the same on both"
            )
        return cls(
            DeviceSpec.from_plain(plain["device"]),
            plain["own_data"],
            tuple(plain["shape"]),
            tuple(plain["classes"]),
            bytes.fromhex(plain.get("session", "")),
        )


def key_of(text: str) -> str:
    """A short name for the text of a spec."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
