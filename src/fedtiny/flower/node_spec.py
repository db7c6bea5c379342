"""What a node is given once in a run: the spec of its device, and what its data must be like."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedtiny import __version__
from fedtiny.config import RunConfig
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import Engine
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.errors import FedTinyError
from fedtiny.extras import require
from fedtiny.models.param_spec import Shape
from fedtiny.runs.inputs import build_model


@dataclass(frozen=True, eq=False)
class NodeSpec:
    """A run as a node must know it: its device, and whose images of which shape and classes."""

    device: DeviceSpec
    own_data: bool
    shape: Shape
    classes: tuple[str, ...]

    @property
    def config(self) -> RunConfig:
        """The run's settings."""
        return self.device.config

    def engine(self) -> Engine:
        """How the device computes: natively, or in PyTorch."""
        return NativeEngine(self.device) if self.device.graph else self._torch_engine()

    def _torch_engine(self) -> Engine:
        require("torch", extra="torch").set_num_threads(self.config.threads)
        from fedtiny.devices.torch_engine import TorchEngine

        model = build_model(self.config, self.shape, len(self.classes))
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
        return json.dumps(plain)

    @cached_property
    def key(self) -> str:
        """A short name for exactly this spec."""
        return key_of(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeSpec) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @classmethod
    def from_text(cls, text: str) -> "NodeSpec":
        """The spec that such JSON says, if it is one of this version."""
        plain: Mapping[str, Any] = json.loads(text)
        if plain["fedtiny"] != __version__:
            raise FedTinyError(
                f"this node has fedtiny {__version__}, the server {plain['fedtiny']}; "
                "install the same on both"
            )
        return cls(
            DeviceSpec.from_plain(plain["device"]),
            plain["own_data"],
            tuple(plain["shape"]),
            tuple(plain["classes"]),
        )


def key_of(text: str) -> str:
    """A short name for the text of a spec."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
