"""The one table of operations: what a node may compute, its shape, its tensors and its cost.

How a backend computes an operation is its own matter: `native/csrc`, `graph/arithmetic.py` (NumPy),
`export/c_calls.py`, `export/torch_model.py` and `export/onnx_file.py` each have a table of forms.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from math import prod

from fedtiny.graph import shapes
from fedtiny.graph.node import ACTIVATIONS as ACTIVATIONS
from fedtiny.graph.node import CONVOLUTIONS as CONVOLUTIONS
from fedtiny.graph.node import Kind, Node, Shape
from fedtiny.graph.node import POOLS as POOLS
from fedtiny.graph.node import WINDOWS as WINDOWS
from fedtiny.graph.node import Pair as Pair
from fedtiny.graph.shapes import Sources, Tensors


@dataclass(frozen=True)
class Operation:
    """What every backend must know of a kind of node; `sources` are the shapes that it reads."""

    shape: Callable[[Node, Sources], Shape] = shapes.same
    misfit: Callable[[Node, Sources], str] = lambda node, sources: ""
    """What is wrong with a node for what it reads, or nothing."""
    reads: int = 1
    tensors: Callable[[Node, Sources], Tensors] = lambda node, sources: {}
    """The shapes of its parameters and statistics, by the last part of their names; of a step that
    is one parameter, by nothing."""
    uses: Callable[[Sources, Shape], int] = lambda sources, shape: 0
    """How often one image uses each weight: multiply-adds are that many times the weights."""
    macs: Callable[[Sources], int] = lambda sources: 0
    """Multiply-adds of two things that are computed, one image's."""
    native: bool = True
    """Whether native devices can train it."""


def _at_each_place(sources: Sources, shape: Shape) -> int:
    return prod(shape[1:])


OPERATIONS = {
    Kind.INPUT: Operation(shapes.stated, reads=0),
    Kind.CONVOLUTION: Operation(
        shapes.windowed, shapes.windows_misfit, 1, shapes.layer_tensors, _at_each_place
    ),
    # over the channels, at each place
    Kind.LINEAR: Operation(
        lambda node, sources: (node.channels, *sources[0][1:]),
        tensors=shapes.layer_tensors,
        uses=_at_each_place,
    ),
    Kind.BATCH_NORM: Operation(tensors=shapes.norm_tensors),
    Kind.ADD: Operation(shapes.same, shapes.add_misfit, reads=2),
    Kind.MAX_POOL: Operation(shapes.windowed, shapes.windows_misfit),
    Kind.MEAN_POOL: Operation(shapes.windowed, shapes.windows_misfit),
    Kind.ADAPTIVE_POOL: Operation(lambda node, sources: (sources[0][0], *node.size)),
    Kind.FLATTEN: Operation(lambda _, sources: (prod(sources[0]), 1, 1)),
    Kind.DROPOUT: Operation(),
    Kind.TRANSPOSED_CONVOLUTION: Operation(
        shapes.transposed,
        shapes.windows_misfit,
        tensors=shapes.layer_tensors,
        uses=lambda sources, shape: prod(sources[0][1:]),
        native=False,
    ),
    Kind.GROUP_NORM: Operation(shapes.same, shapes.norm_groups_misfit, tensors=shapes.norm_tensors),
    # over the channels, at each place
    Kind.LAYER_NORM: Operation(tensors=shapes.norm_tensors),
    **dict.fromkeys(ACTIVATIONS, Operation()),
    Kind.SOFTMAX: Operation(shapes.same, shapes.axis_misfit, native=False),
    Kind.MULTIPLY: Operation(shapes.same, shapes.multiply_misfit, reads=2),
    Kind.CONCAT: Operation(shapes.joined, shapes.axis_misfit, reads=2),
    Kind.RESHAPE: Operation(shapes.stated, shapes.reshape_misfit),
    Kind.PERMUTE: Operation(shapes.permuted, shapes.permute_misfit),
    Kind.UPSAMPLE: Operation(
        lambda node, sources: (sources[0][0], *node.size), shapes.upsample_misfit
    ),
    Kind.MATMUL: Operation(
        shapes.product,
        shapes.product_misfit,
        reads=2,
        macs=lambda sources: prod(sources[0]) * sources[1][2],
        native=False,
    ),
    Kind.PARAMETER: Operation(
        shapes.stated,
        shapes.parameter_misfit,
        reads=0,
        tensors=lambda node, _: {"": node.shape},
        native=False,
    ),
    Kind.SLICE: Operation(shapes.sliced, shapes.slice_misfit),
    Kind.SCALE: Operation(native=False),
}
NATIVE = frozenset(kind for kind, operation in OPERATIONS.items() if operation.native)


def tensor_name(node: Node, part: str) -> str:
    """What a state dict calls a tensor of a node."""
    return f"{node.name}.{part}" if part else node.name


def lacking(nodes: Iterable[Node], forms: Container[Kind]) -> str:
    """The first operation of a network for which a backend has no form, or nothing."""
    return next((described(node) for node in nodes if node.kind not in forms), "")


def native_lacks(nodes: Iterable[Node]) -> str:
    """The first thing in a network that native devices cannot train, or nothing."""
    nodes = tuple(nodes)
    runs = Counter(node.name for node in nodes if node.kind == Kind.BATCH_NORM)
    twice = next((name for name, count in runs.items() if count > 1), "")
    along = next((n for n in nodes if n.kind in (Kind.CONCAT, Kind.SLICE) and n.axis != 0), None)
    return (
        lacking(nodes, NATIVE)
        or (f"{described(along)} along rows or columns" if along else "")
        or (f"a batch norm that runs twice ({twice})" if twice else "")
    )


def described(node: Node) -> str:
    """A node for a message: its operation and the module that computes it.

    >>> described(Node(Kind.GELU, (1,), module="blocks.0.mlp.1"))
    'gelu (blocks.0.mlp.1)'
    """
    name, place = node.kind.name.lower(), node.module or node.name
    return f"{name} ({place})" if place else name


def beyond_plain(node: Node) -> str:
    """What a convolution or pool has that not every backend knows, or nothing."""
    found = {
        "groups": node.groups != 1,
        "dilation": node.dilation != (1, 1),
        "uneven padding": node.padding_end is not None,
        "ceil mode": node.ceil,
    }
    return next((what for what, is_so in found.items() if is_so), "")
