"""`fedtiny.load`: a packed model as an nn.Module."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedtiny.extras import require

if TYPE_CHECKING:
    from fedtiny.export.torch_model import PackedNetwork


def load(path: Path | str) -> "PackedNetwork":
    """The network of a packed file, ready for images as they come: pixels, not normalised.

    It takes [N, C, H, W], uint8 from 0 to 255 or float from 0 to 1, and gives logits; `classes`
    has the names, `card` says where the model comes from.
    """
    network: PackedNetwork = require("fedtiny.export.torch_model", extra="torch").load(path)
    return network
