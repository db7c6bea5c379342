"""The state of a run on disk, small because it is sparse, and whether a run can go on from it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save

from fedtiny.errors import FedTinyError, RunError, plural
from fedtiny.federation.averaging import AVERAGE
from fedtiny.federation.server import FINAL, Server
from fedtiny.federation.server_optimizer import FIRST, SECOND
from fedtiny.files import (
    MAX_TENSORS,
    digest_of,
    exact_json,
    plain,
    read_file,
    readable,
    with_text,
    write_atomically,
)
from fedtiny.models.param_spec import ParamSpec
from fedtiny.runs import metrics, reading
from fedtiny.runs.folder import RunFolder, quoted
from fedtiny.runs.metrics import Record
from fedtiny.runs.split import NOT_OURS, load_split
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, is_usable

FORMAT = 1
METHOD_ARRAY = "method."
MAX_MEMORY_DEPTH = 100  # tables within tables of what a method remembers
OF_THETA = {FIRST, SECOND, AVERAGE, FINAL}
"""Arrays of a server with a value for each of theta's."""
ARRAYS = {"theta": np.float32, "mask.counts": np.int64, "mask.indices": np.int32}
"""The arrays of a model and its mask."""
STATE = reading.fields(
    {
        "anatomy": reading.integer(1 << 64),
        "round": reading.integer(reading.MAX_ROUNDS),
        "coarse_pruned": reading.is_flag,
        "memory": reading.is_table,
        "door": reading.is_table,
    },
    {"record": reading.RECORD},
)
"""What a checkpoint says beside its tensors."""


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

    @property
    def is_usable(self) -> bool:
        """Whether its models have values that are finite, and small enough to compute with."""
        models = [array for name, array in self.tensors.items() if _is_model(name)]
        return all(is_usable(array) for array in models if array.dtype.kind == "f")


def _is_model(name: str) -> bool:
    """Whether a tensor has values of a model; in any other a method may keep, say, -inf.

    >>> [_is_model(n) for n in ("theta", "method.best.theta", "method.best_score")]
    [True, True, False]
    """
    return name.endswith("theta") or name.removeprefix(METHOD_ARRAY) in OF_THETA


def save_checkpoint(folder: RunFolder, server: Server, last: Record | None = None) -> None:
    """Write all of the server's state; a kill leaves the last checkpoint whole.

    It has the last round's line of metrics too, so that a run goes on if that was cut, but not how
    long the round took: the same run always has the same checkpoint.
    """
    tensors = _tensors(server)
    state = {
        "format": FORMAT,
        "anatomy": server.param_spec.fingerprint,
        "round": server.round,
        "coarse_pruned": server.coarse_pruned,
        "memory": server.memory,
        "door": server.transport.state(),
        **({"record": plain({**last, "seconds": 0.0})} if last else {}),
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
    try:
        server.theta = theta_from(server.param_spec, tensors)
        server.transport.restore(state["door"], server.theta)
    except NOT_OURS as error:
        raise RunError(f"{checkpoint.name} is damaged") from error
    server.round = state["round"]
    server.coarse_pruned = state["coarse_pruned"]
    server.memory = state["memory"]
    server.arrays = {
        name.removeprefix(METHOD_ARRAY): array
        for name, array in tensors.items()
        if name.startswith(METHOD_ARRAY)
    }


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
    path = folder.checkpoint
    with readable(path):
        data = read_file(path, MAX_TENSORS)
    try:
        tensors, signed_text = with_text(data, "fedtiny")
        signed = exact_json(signed_text)
        text, digest = signed["state"], signed["digest"]
        state = exact_json(text, MAX_MEMORY_DEPTH)
        if digest != digest_of(tensors, text):
            raise ValueError("the digest is that of something else")
        if state["format"] == FORMAT and not (STATE(state) and _has_arrays(tensors)):
            raise ValueError("a field or an array is missing or of another type")
    except (SafetensorError, *NOT_OURS) as error:
        raise IncompleteRunError(f"{path} is damaged", folder) from error
    if state["format"] != FORMAT:
        raise RunError(f"{path} has format {state['format']!r:.20}; this version reads {FORMAT}")
    return Checkpoint(str(path), tensors, state)


def _has_arrays(tensors: Mapping[str, NDArray[Any]]) -> bool:
    """Whether the arrays of a model are there, of the kinds they should be."""
    return all(name in tensors and tensors[name].dtype == kind for name, kind in ARRAYS.items())


def require_complete(folder: RunFolder) -> None:
    """Refuse a run that has lost a file without which it cannot go on."""
    try:
        if folder.partition.exists() or folder.checkpoint.exists():
            load_split(folder)
        if folder.checkpoint.exists():
            reading.selection(folder)
        elif rounds := len(metrics.read(folder)):
            raise RunError(
                f"{folder.checkpoint} is missing, and with it what {plural(rounds, 'round')} "
                "have trained"
            )
    except FedTinyError as error:
        raise IncompleteRunError(str(error), folder) from error
