"""`fedtiny.load`: a packed model as an nn.Module."""

from pathlib import Path
from typing import TYPE_CHECKING

from fedtiny.export import packed
from fedtiny.export.network import TinyModel
from fedtiny.extras import require

if TYPE_CHECKING:
    from fedtiny.export.torch_model import PackedNetwork


def load(path: Path | str) -> "PackedNetwork":
    """The network of a packed file or of a run folder, ready for pixels that are not normalised.

    It takes [N, C, H, W], uint8 from 0 to 255 or float from 0 to 1, and gives logits; `classes`
    has the names, `card` says where the model comes from.
    """
    require("torch", extra="torch")
    from fedtiny.export.torch_model import PackedNetwork

    return PackedNetwork(shipped(path)).eval()


def shipped(path: Path | str) -> TinyModel:
    """The model of a packed file, or of a run folder; only a folder costs more imports."""
    place = Path(path)
    if not place.is_dir():
        return packed.read(place)
    from fedtiny.export.source import tiny_model

    return tiny_model(place)
