"""The compiled library: its C structures (csrc/fedtiny_native.h), functions and options."""

import ctypes
import os
from collections.abc import Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal

from fedtiny.errors import FedTinyError
from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.graph.operations import OPERATIONS, tensor_name

ENVIRONMENT = "FEDTINY_NATIVE_LIBRARY"


def _each(kind: Any, *names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, kind) for name in names)


class NodeRecord(Structure):
    """fedtiny_node."""

    _fields_ = (
        *_each(c_int32, "kind", "first", "second", "shared", "channels", "height", "width"),
        *_each(c_int32 * 2, "kernel", "stride", "padding", "padding_end", "dilation"),
        *_each(c_int32, "groups", "bias", "count_padding", "ceil", "start"),
        ("order", c_int32 * 3),
        ("approximate", c_int32),
        *_each(c_float, "epsilon", "momentum", "probability", "slope"),
    )


class OptionsRecord(Structure):
    """fedtiny_options."""

    _fields_ = (
        *_each(c_int32, "batch", "forward_batch", "threads", "lanes", "half", "recompute"),
        *_each(c_int32, "remove_dead", "optimizer", "input_gradient", "top_count"),
        ("proximal", c_int32),
        ("budget", c_int64),
    )


class Memory(Structure):
    """fedtiny_memory: bytes that a prepared network takes, by what they are for."""

    _fields_ = (
        *_each(c_int64, "total", "parameters", "lists", "statistics"),
        *_each(c_int64, "activations", "scratch"),
    )


class Rates(Structure):
    """fedtiny_rates: what an optimizer goes by."""

    _fields_ = (
        *_each(c_double, "learning_rate", "momentum", "decay", "rest_decay"),
        *_each(c_double, "beta1", "beta2", "epsilon", "proximal"),
    )

    def __init__(
        self,
        lr: float,
        momentum: float = 0.9,
        decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        rest_decay: float | None = None,
        proximal: float = 0.0,
    ) -> None:
        """The decay of biases and batch norm is that of weights unless it is given."""
        rest = decay if rest_decay is None else rest_decay
        super().__init__(lr, momentum, decay, rest, *betas, epsilon, proximal)


class Score(Structure):
    """fedtiny_score: summed loss and number of right answers."""

    _fields_ = (("loss", c_double), ("correct", c_int64))


class GradQueryRecord(Structure):
    """fedtiny_grad_query."""

    _fields_ = (
        *_each(c_int32, "node", "count"),
        *_each(c_void_p, "indices", "values", "dense", "fisher"),
        ("at_positions", c_int32),
    )


class PassRecord(Structure):
    """fedtiny_pass."""

    _fields_ = (
        ("mode", c_int32),
        ("query_count", c_int32),
        ("queries", c_void_p),
        ("images", c_void_p),
        ("labels", c_void_p),
        ("count", c_int64),
        ("seed", c_uint64),
        ("epsilon", c_double),
        ("logits", c_void_p),
        ("freeze_norms", c_int32),
    )


_P = c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "create": (POINTER(NodeRecord), c_int32, POINTER(_P)),
    "destroy": (_P,),
    "plan": (_P, POINTER(OptionsRecord), _P, POINTER(Memory)),
    "prepare": (_P, POINTER(OptionsRecord), _P, _P),
    "taken": (_P, POINTER(Memory)),
    "set": (_P, c_int32, c_int32, _P, c_int64),
    "get": (_P, c_int32, c_int32, _P, c_int64),
    "get_gradient": (_P, c_int32, c_int32, _P, c_int64),
    "get_input_gradient": (_P, _P, c_int64),
    "start": (_P, POINTER(Rates)),
    "run": (_P, POINTER(PassRecord), POINTER(Score)),
}


class NativeError(FedTinyError):
    """The native library refused what it was given."""


class Library:
    """The functions of the compiled library, checked."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, f"fedtiny_{name}")
            function.argtypes, function.restype = arguments, c_int32
        self._library.fedtiny_last_error.restype = c_char_p
        self._library.fedtiny_instructions.restype = c_char_p
        self._library.fedtiny_destroy.restype = None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function by its name; what it refuses is raised."""
        if getattr(self._library, f"fedtiny_{name}")(*arguments):
            raise NativeError(self._library.fedtiny_last_error().decode())

    @property
    def instructions(self) -> str:
        """The instruction set that this processor gets."""
        name: bytes = self._library.fedtiny_instructions()
        return name.decode()


def path() -> Path | None:
    """Where the compiled library lies, if it does."""
    named = os.environ.get(ENVIRONMENT)
    place = Path(named) if named else Path(__file__).parent / "_fedtiny_native.so"
    return place if place.exists() else None


def available() -> bool:
    """Whether the native library was built with this installation."""
    return path() is not None


@cache
def library() -> Library:
    """The library, loaded once."""
    place = path()
    if place is None:
        raise NativeError(
            "fedtiny was installed without its native library, since no C++ compiler was there; "
            "install one and reinstall fedtiny, or use --device-backend torch"
        )
    return Library(place)


@dataclass(frozen=True)
class Options:
    """How a network is run and what memory it may use for that."""

    batch: int = 64
    """Most images of a training step."""
    forward_batch: int | None = None
    """Most images of a forward pass; default: those of a training step."""
    threads: int = 1
    """Results do not depend on it."""
    storage: Literal["float32", "float16"] = "float32"
    """How activations and their gradients are held."""
    recompute: bool = False
    """Compute what only batch norm reads again in the backward pass, and do not hold it."""
    remove_dead: bool = False
    """Leave out channels that cannot reach the output; their running statistics stay."""
    optimizer: Literal["sgd", "adam"] = "adam"
    input_gradient: bool = False
    top_count: int = 0
    """Most gradients of pruned weights that a layer is asked for."""
    proximal: bool = False
    """Keep the values that an optimizer starts from, for a proximal term."""
    budget: int = 0
    """Most bytes to take; 0 is no limit."""
    lanes: int = 0
    """Images computed at once: 0 takes what suits the processor and the batch."""

    def record(self) -> OptionsRecord:
        """As the library wants it."""
        values = asdict(self) | {
            "forward_batch": self.forward_batch or self.batch,
            "half": self.storage == "float16",
            "optimizer": self.optimizer == "adam",
        }
        return OptionsRecord(*(values[name] for name, *_ in OptionsRecord._fields_))


class Parameter(IntEnum):
    """fedtiny_parameter."""

    WEIGHT = 0
    BIAS = 1
    SCALE = 2
    SHIFT = 3
    RUNNING_MEAN = 4
    RUNNING_VAR = 5
    BATCH_MEAN = 6
    BATCH_VAR = 7
    CORRECTED_VAR = 8


def node_records(nodes: Sequence[Node]) -> list[NodeRecord]:
    """The nodes of a graph as C records; a layer that runs again names its first run."""
    first_runs: dict[str, int] = {}
    found = []
    for number, node in enumerate(nodes):
        owner = first_runs.setdefault(node.name, number) if node.name else number
        found.append(_record(node, shared=-1 if owner == number else owner))
    return found


def _record(node: Node, shared: int) -> NodeRecord:
    first, second = (*node.inputs, -1, -1)[:2]
    height, width = node.size
    values = asdict(node) | {
        **{"first": first, "second": second, "shared": shared},
        **{"height": height, "width": width, "padding_end": node.ends},
    }
    return NodeRecord(*(values[name] for name, *_ in NodeRecord._fields_))


NORMS = (Kind.BATCH_NORM, Kind.GROUP_NORM, Kind.LAYER_NORM)


def places_of(graph: Graph) -> dict[str, tuple[int, Parameter]]:
    """Which node and parameter each tensor is; of a layer that runs twice, its first node."""
    found: dict[str, tuple[int, Parameter]] = {}
    for number, (node, sources) in enumerate(graph.read):
        first = Parameter.SCALE if node.kind in NORMS else Parameter.WEIGHT
        parts = OPERATIONS[node.kind].tensors(node, sources)  # in the order of Parameter
        for place, part in enumerate(parts):
            found.setdefault(tensor_name(node, part), (number, Parameter(first + place)))
    return found
