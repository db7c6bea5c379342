"""Weights to begin with: the state dict of a network, in a safetensors file."""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from fedtiny.config import RunConfig
from fedtiny.data import DataSet
from fedtiny.errors import ConfigError, ModelError
from fedtiny.extras import require
from fedtiny.files import MAX_TENSORS, read_file
from fedtiny.paths import user_path
from fedtiny.runs.inputs import build_model

if TYPE_CHECKING:
    from torch import Tensor, nn

PICKLES = (b"PK\x03\x04", b"\x80")
"""How a checkpoint of PyTorch begins: a zip archive or, from before version 1.6, a pickle."""
PICKLED = (
    " but looks like a PyTorch checkpoint, which could run code; where you trust it, save its "
    "state dict with safetensors.torch.save_file"
)
COUNTER = "num_batches_tracked"  # of batch norm, which no one needs


@dataclass(frozen=True, eq=False)
class Weights:
    """The bytes of such a file, and what it is called."""

    content: bytes
    name: str

    @classmethod
    def read(cls, path: str | Path) -> "Weights":
        """Those of a file."""
        try:
            return cls(read_file(user_path(path, "--weights"), MAX_TENSORS), str(path))
        except OSError as error:
            raise ConfigError(f"cannot read --weights {path}: {error.strerror}") from error

    @cached_property
    def digest(self) -> str:
        """A hash of the bytes."""
        return hashlib.blake2b(self.content, digest_size=20).hexdigest()

    def record(self) -> dict[str, str]:
        """What a reader of the run should know of them."""
        return {"file": self.name, "blake2b": self.digest}

    def load_into(self, model: "nn.Module") -> None:
        """Give a network these values; every tensor must be there, and no other."""
        torch = require("torch", extra="torch")
        try:
            found: dict[str, Tensor] = require("safetensors.torch", extra="torch").load(
                self.content
            )
        except (SafetensorError, ValueError, KeyError) as broken:
            why = PICKLED if self.content.startswith(PICKLES) else f" ({broken})"
            raise ModelError(f"{self.name} is not a readable safetensors file{why}") from broken
        state = model.state_dict()
        if trouble := _misfit(state, found):
            raise ModelError(f"{self.name} does not fit the network: {trouble}")
        with torch.no_grad():
            for name, value in found.items():
                state[name].copy_(value)


def begun_with(
    weights: Weights | None, config: RunConfig, data: DataSet, own: "nn.Module | None"
) -> "nn.Module | None":
    """A network of one's own, or with weights of one's own; None if neither is given."""
    if weights is None:
        return own
    network = build_model(config, data.input_shape, len(data.classes)) if own is None else own
    network = copy.deepcopy(network).cpu()
    weights.load_into(network)
    return network


def _misfit(state: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What is missing, unexpected or of another shape, or nothing."""
    wanted = [name for name in state if not name.endswith(COUNTER)]
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in state]
    others = [n for n in state if n in found and found[n].shape != state[n].shape]
    shapes = [f"'{n}' is {list(found[n].shape)} and not {list(state[n].shape)}" for n in others]
    told = [
        f"it lacks {_listed(missing)}" if missing else "",
        f"it has {_listed(unexpected)}, which the network has not" if unexpected else "",
        shapes[0] + _more(len(shapes)) if shapes else "",
    ]
    return "; ".join(filter(None, told))


def _listed(names: list[str]) -> str:
    return f"'{names[0]}'{_more(len(names))}"


def _more(count: int) -> str:
    return f" and {count - 1} more" if count > 1 else ""
