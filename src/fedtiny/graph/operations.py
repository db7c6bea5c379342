"""The one table of operations: what a node may compute, its shape, its tensors and its cost.

How a backend computes an operation is its own matter: `native/csrc`, `graph/arithmetic.py` (NumPy),
`export/c_calls.py`, `export/torch_model.py` and `export/onnx_file.py` each have a table of forms.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod

Pair = tuple[int, int]
Shape = tuple[int, int, int]
"""Channels, rows and columns of one image; what is flat has one row and one column."""

MAX_SIDE = 4096  # of a kernel, a stride or a padding


class Kind(IntEnum):
    """What a node computes; the numbers are those of the native library."""

    INPUT = 0
    CONVOLUTION = 1
    LINEAR = 2
    BATCH_NORM = 3
    RELU = 4
    ADD = 5
    MAX_POOL = 6
    MEAN_POOL = 7
    ADAPTIVE_POOL = 8
    FLATTEN = 9
    DROPOUT = 10


LAYERS = (Kind.CONVOLUTION, Kind.LINEAR)
WINDOWS = (Kind.CONVOLUTION, Kind.MAX_POOL, Kind.MEAN_POOL)


@dataclass(frozen=True)
class Node:
    """One step of a network. `name` is that of the module whose parameters it holds."""

    kind: Kind
    inputs: tuple[int, ...] = ()
    name: str = ""
    channels: int = 0
    size: Pair = (0, 0)
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    bias: bool = False
    count_padding: bool = True
    epsilon: float = 1e-5
    momentum: float = 0.1
    probability: float = 0.0


Sources = Sequence[Shape]
Tensors = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Operation:
    """What every backend must know of a kind of node; `sources` are the shapes that it reads."""

    shape: Callable[[Node, Sources], Shape]
    misfit: Callable[[Node, Sources], str] = lambda node, sources: ""
    """What is wrong with a node for what it reads, or nothing."""
    reads: int = 1
    tensors: Callable[[Node, Sources], Tensors] = lambda node, sources: {}
    """The shapes of its parameters and statistics, by the last part of their names."""
    uses: Callable[[Shape], int] = lambda shape: 0
    """How often one image uses each weight: multiply-adds are that many times the weights."""
    native: bool = True
    """Whether native devices can train it."""


def _same(node: Node, sources: Sources) -> Shape:
    return sources[0]


def _windowed(node: Node, sources: Sources) -> Shape:
    channels, *sides = sources[0]
    rows, columns = (
        (side + 2 * padding - kernel) // stride + 1
        for side, kernel, stride, padding in zip(
            sides, node.kernel, node.stride, node.padding, strict=True
        )
    )
    return node.channels if node.kind in LAYERS else channels, rows, columns


def _windows_misfit(node: Node, sources: Sources) -> str:
    for kernel, stride, padding, side in zip(
        node.kernel, node.stride, node.padding, sources[0][1:], strict=True
    ):
        if not (1 <= kernel <= MAX_SIDE and 1 <= stride <= MAX_SIDE):
            return f"needs kernels and strides of 1 to {MAX_SIDE}"
        if not 0 <= padding <= MAX_SIDE or (node.kind not in LAYERS and 2 * padding > kernel):
            return "needs a padding that its kernel can bridge"
        if side + 2 * padding < kernel:
            return "has a kernel larger than what it reads"
    return ""


def _layer_tensors(node: Node, sources: Sources) -> Tensors:
    kernel = node.kernel if node.kind == Kind.CONVOLUTION else ()
    weight = {"weight": (node.channels, sources[0][0], *kernel)}
    return {**weight, "bias": (node.channels,)} if node.bias else weight


def _norm_tensors(node: Node, sources: Sources) -> Tensors:
    parts = ("weight", "bias", "running_mean", "running_var")
    return dict.fromkeys(parts, (sources[0][0],))


OPERATIONS = {
    Kind.INPUT: Operation(lambda node, _: (node.channels, *node.size), reads=0),
    Kind.CONVOLUTION: Operation(
        _windowed, _windows_misfit, tensors=_layer_tensors, uses=lambda shape: prod(shape[1:])
    ),
    Kind.LINEAR: Operation(
        lambda node, _: (node.channels, 1, 1),
        lambda _, sources: "" if sources[0][1:] == (1, 1) else "must read something flat",
        tensors=_layer_tensors,
        uses=lambda _: 1,
    ),
    Kind.BATCH_NORM: Operation(_same, tensors=_norm_tensors),
    Kind.RELU: Operation(_same),
    Kind.ADD: Operation(
        _same,
        lambda _, sources: "" if sources[0] == sources[1] else "adds two of different shapes",
        reads=2,
    ),
    Kind.MAX_POOL: Operation(_windowed, _windows_misfit),
    Kind.MEAN_POOL: Operation(_windowed, _windows_misfit),
    Kind.ADAPTIVE_POOL: Operation(lambda node, sources: (sources[0][0], *node.size)),
    Kind.FLATTEN: Operation(lambda _, sources: (prod(sources[0]), 1, 1)),
    Kind.DROPOUT: Operation(_same),
}
NATIVE = frozenset(kind for kind, operation in OPERATIONS.items() if operation.native)


def lacking(nodes: Iterable[Node], forms: Container[Kind]) -> str:
    """The first operation of a network for which a backend has no form, or nothing."""
    return next((node.kind.name.lower() for node in nodes if node.kind not in forms), "")
