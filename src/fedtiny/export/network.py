"""A trained network with all that goes with it: what every format is written from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError
from fedtiny.graph.ir import Shape
from fedtiny.graph.weights import Lowered

Values = Literal["fp32", "fp16", "int8"]
MAX_CLAIMED = 1 << 53  # bytes that a card may claim: a larger number is no exact float


@dataclass(frozen=True, eq=False)
class TinyModel:
    """A network with what is needed to use it: how pixels are normalised, and its classes' names.

    The card says where it comes from: method, density, accuracy, data, config, version. `held` is
    how the file it was read from holds its weights.
    """

    net: Lowered
    normalisation: Preparation
    classes: tuple[str, ...]
    card: Mapping[str, Any]
    held: Values = "fp32"

    @property
    def shape(self) -> Shape:
        """Channels, rows and columns of an image."""
        return self.net.graph.shapes[0]

    @property
    def dense_bytes(self) -> int:
        """Bytes of the model before pruning, as its card tells them, or else of its full shape."""
        claimed = self.card.get("dense_bytes")
        if type(claimed) is int and 0 < claimed < MAX_CLAIMED:
            return claimed
        return 4 * sum(map(prod, self.net.graph.weight_shapes.values()))


def check_images(found: Sequence[int], expected: Shape) -> None:
    """Refuse a batch of images [N, C, H, W] that the model was not trained for."""
    if tuple(found[1:]) != expected:
        raise ExportError(f"the model takes images of shape {expected}, not {tuple(found[1:])}")
