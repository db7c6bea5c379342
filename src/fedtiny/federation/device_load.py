"""What the costs of a verb depend on: the network under a mask, and the data of a device."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtiny.models.param_spec import ParamSpec


@dataclass(frozen=True)
class LayerFlops:
    """A layer's share of a forward pass of one image, with `kept` of its weights and with all.

    The gradient of its input takes as much, and so does that of its weights.
    """

    name: str
    kept: int
    forward: int
    dense: int

    @property
    def weight(self) -> str:
        """Name of the layer's weight in the state dict."""
        return f"{self.name}.weight"


@dataclass(frozen=True)
class DeviceLoad:
    """A device in training: its network, and how many images it has for what."""

    layers: Sequence[LayerFlops]
    """In the order that the network runs them."""
    param_spec: ParamSpec
    samples: int
    batch: int
    """Images of a mini-batch."""
    development: int
    """Images that measure candidates."""
    candidates: int = 0

    @property
    def forward(self) -> int:
        """A forward pass of one image."""
        return sum(layer.forward for layer in self.layers)
