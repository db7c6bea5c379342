"""The state of a run on disk, small because it is sparse, and whether a run can go on from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save

from fedtiny.errors import FedTinyError, RunError
from fedtiny.federation.server import Server
from fedtiny.files import digest_of, read_json, with_text, write_atomically
from fedtiny.models.param_spec import ParamSpec
from fedtiny.runs import metrics
from fedtiny.runs.folder import RunFolder, quoted
from fedtiny.runs.split import load_split
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

FORMAT = 1
METHOD_ARRAY = "method."


class IncompleteRunError(RunError):
    """A run that has lost what it needs to go on; `trouble` is without the way out."""

    def __init__(self, trouble: str, folder: RunFolder) -> None:
        super().__init__(
            f"{trouble}; put back a copy of it, or run its config again with: "
            f"fedtiny run {quoted(folder.config)}"
        )
        self.trouble = trouble


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds; `name` is that of its file."""

    name: str
    tensors: dict[str, NDArray[Any]]
    state: dict[str, Any]

    @property
    def round(self) -> int:
        """The number of rounds before it."""
        return int(self.state["round"])


def save_checkpoint(folder: RunFolder, server: Server) -> None:
    """Write all of the server's state; a kill leaves the last checkpoint whole."""
    tensors = _tensors(server)
    state = {
        "format": FORMAT,
        "anatomy": server.param_spec.fingerprint,
        "round": server.round,
        "coarse_pruned": server.coarse_pruned,
        "memory": server.memory,
        "door": server.transport.state(),
    }
    text = json.dumps(state)
    signed = json.dumps({"state": text, "digest": digest_of(tensors, text)})
    write_atomically(folder.checkpoint, save(tensors, {"fedtiny": signed}))


def load_checkpoint(folder: RunFolder, server: Server) -> None:
    """Put a server where the checkpoint was taken."""
    restore(read_checkpoint(folder), server)


def restore(checkpoint: Checkpoint, server: Server) -> None:
    """Put a server where the checkpoint was taken."""
    tensors, state = checkpoint.tensors, checkpoint.state
    if state["anatomy"] != server.param_spec.fingerprint:
        raise RunError(f"{checkpoint.name} belongs to another model than its config names")
    server.theta = theta_from(server.param_spec, tensors)
    server.round = state["round"]
    server.coarse_pruned = state["coarse_pruned"]
    server.memory = state["memory"]
    server.arrays = {
        name.removeprefix(METHOD_ARRAY): array
        for name, array in tensors.items()
        if name.startswith(METHOD_ARRAY)
    }
    server.transport.restore(state["door"], server.theta)


def _tensors(server: Server) -> dict[str, NDArray[Any]]:
    own = {METHOD_ARRAY + name: array for name, array in server.arrays.items()}
    return {**theta_tensors(server.theta), **own}


def theta_tensors(theta: Theta) -> dict[str, NDArray[Any]]:
    """A model and its mask, as few small arrays."""
    mask = theta.mask
    sparse = [mask.indices(layer) for layer in mask if not mask.is_full(layer)]
    return {
        "theta": theta.vector,
        "mask.counts": np.array([mask.kept(layer) for layer in mask], dtype=np.int64),
        "mask.indices": np.concatenate([*sparse, np.empty(0, dtype=np.int32)]),
    }


def theta_from(param_spec: ParamSpec, tensors: Mapping[str, NDArray[Any]]) -> Theta:
    """The model that such arrays hold."""
    mask = _mask(param_spec, tensors["mask.counts"], tensors["mask.indices"])
    return Theta(mask, tensors["theta"])


def _mask(param_spec: ParamSpec, counts: NDArray[Any], indices: NDArray[Any]) -> Mask:
    kept: dict[str, NDArray[Any] | None] = {}
    for (layer, size), count in zip(param_spec.sizes.items(), counts, strict=True):
        kept[layer] = None if count == size else indices[:count]
        indices = indices if count == size else indices[count:]
    return Mask(param_spec, kept)


def read_checkpoint(folder: RunFolder) -> Checkpoint:
    """The last checkpoint of a run."""
    try:
        data = folder.checkpoint.read_bytes()
        tensors, signed_text = with_text(data, "fedtiny")
        signed = json.loads(signed_text)
        text, digest = signed["state"], signed["digest"]
        state = json.loads(text)
        if digest != digest_of(tensors, text):
            raise ValueError("the digest is that of something else")
    except OSError as error:
        raise RunError(f"cannot read {folder.checkpoint}: {error.strerror}") from error
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise IncompleteRunError(f"{folder.checkpoint} is damaged", folder) from error
    if state["format"] != FORMAT:
        raise RunError(
            f"{folder.checkpoint} has format {state['format']}; this version reads {FORMAT}"
        )
    return Checkpoint(str(folder.checkpoint), tensors, state)


def require_complete(folder: RunFolder) -> None:
    """Refuse a run that has lost a file without which it cannot go on."""
    try:
        if folder.partition.exists():
            load_split(folder)
        if folder.checkpoint.exists():
            read_json(folder.selection)
        elif rounds := len(metrics.read(folder)):
            raise RunError(
                f"{folder.checkpoint} is missing, and with it what {rounds} rounds have trained"
            )
    except FedTinyError as error:
        raise IncompleteRunError(str(error), folder) from error
