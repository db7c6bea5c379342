"""A network as the few calls that C code makes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from fedtiny.errors import ExportError
from fedtiny.graph.ir import LAYERS, Graph, Kind, Node, Pair, Shape
from fedtiny.graph.operations import lacking
from fedtiny.graph.passes import for_inference

ACTIONS = {
    Kind.INPUT: "load",
    Kind.CONVOLUTION: "convolve",
    Kind.TRANSPOSED_CONVOLUTION: "convolve",
    Kind.LINEAR: "convolve",
    Kind.BATCH_NORM: "normalise",
    Kind.GROUP_NORM: "group_norm",
    Kind.LAYER_NORM: "layer_norm",
    Kind.RELU: "rectify",
    Kind.RELU6: "rectify",
    Kind.LEAKY_RELU: "leaky_relu",
    Kind.SILU: "silu",
    Kind.HARD_SWISH: "hard_swish",
    Kind.HARD_SIGMOID: "hard_sigmoid",
    Kind.SIGMOID: "sigmoid",
    Kind.TANH: "hyperbolic_tangent",
    Kind.GELU: "gelu",
    Kind.SOFTMAX: "softmax",
    Kind.ADD: "add",
    Kind.MULTIPLY: "multiply",
    Kind.SCALE: "scale",
    Kind.CONCAT: "concatenate",
    Kind.SLICE: "slice",
    Kind.MAX_POOL: "max_pool",
    Kind.MEAN_POOL: "mean_pool",
    Kind.ADAPTIVE_POOL: "adaptive_pool",
    Kind.FLATTEN: "flatten",
    Kind.RESHAPE: "flatten",
    Kind.PERMUTE: "permute",
    Kind.UPSAMPLE: "upsample",
    Kind.MATMUL: "multiply_matrices",
    Kind.PARAMETER: "constant",
}
"""The function of the C runtime for each operation; dropout is left out."""
LIMITS = {Kind.RELU: "RELU", Kind.RELU6: "RELU6"}
CAN_LIMIT = (*LAYERS, Kind.BATCH_NORM, Kind.ADD)


@dataclass(frozen=True)
class Cut:
    """How planes are cut into `stride` parts along each axis, for convolutions with a stride.

    Each part has `size` rows and columns; the plane has `margin` rows and columns of zeros before
    its own.
    """

    stride: Pair
    margin: Pair
    size: Pair

    @property
    def rows_and_columns(self) -> Pair:
        """Of all parts of a plane, one below the other."""
        return prod(self.stride) * self.size[0], self.size[1]


@dataclass(frozen=True)
class Step:
    """One call: a node with the sum and the ReLU behind it, or what arranges planes for it.

    Values go by the number of the node that gives them. What is added comes second in `reads`.
    """

    action: str
    node: Node
    reads: tuple[int, ...]
    gives: int
    limit: str = "LINEAR"
    """How its values are cut off: LINEAR, RELU or RELU6."""
    cut: Cut | None = None
    scratch: int | None = None
    """A value that only this step needs: the parts of one plane."""

    @property
    def name(self) -> str:
        """What its tables are called in C, such as node5_layer1_0_conv1; no two are the same."""
        return f"node{self.gives}_" + re.sub(r"[^A-Za-z0-9]", "_", self.node.name)

    @property
    def convolves(self) -> bool:
        """Whether it lists kept weights and gathers what they read."""
        return self.action.startswith("convolve")

    @property
    def gathered(self) -> int:
        """The value in which a convolution finds its pixels."""
        return self.reads[0] if self.scratch is None else self.scratch

    @property
    def is_strided(self) -> bool:
        """Whether it is a convolution that skips pixels."""
        return self.convolves and self.node.stride != (1, 1)

    @property
    def is_depthwise(self) -> bool:
        """Whether a plane is read by filters of its own, and by one of them at a time."""
        return self.action == "convolve_groups" and self.node.groups == self.node.channels

    @property
    def may_overwrite(self) -> tuple[int, ...]:
        """Values in whose place the result may be written if it has their shape."""
        if self.convolves:
            others = tuple(value for value in self.reads[1:] if value != self.reads[0])
            return (*others, self.reads[0]) if self.is_depthwise else others
        return self.reads if self.action in PIXEL_BY_PIXEL else ()


PIXEL_BY_PIXEL = (
    *("normalise", "group_norm", "layer_norm", "rectify", "leaky_relu", "silu", "hard_swish"),
    *("hard_sigmoid", "sigmoid", "hyperbolic_tangent", "gelu", "gelu_by_tanh", "softmax"),
    *("add", "multiply", "multiply_planes", "scale"),
)
"""What may write where it reads."""


@dataclass(frozen=True)
class Program:
    """Steps in the order in which they run; the first loads the image."""

    steps: tuple[Step, ...]
    shapes: dict[int, Shape]

    def last_reads(self) -> dict[int, int]:
        """The number of the last step that reads each value; the result is read after all."""
        found = {v: i for i, step in enumerate(self.steps) for v in (*step.reads, step.gives)}
        return {**found, self.steps[-1].gives: len(self.steps)}


def program(graph: Graph) -> Program:
    """The steps of a network; some convolutions have one before them that arranges planes."""
    if lacks := lacking(graph.nodes, (*ACTIONS, Kind.DROPOUT)):
        raise ExportError(f"the C export lacks {lacks}; ONNX and packed have it")
    graph = for_inference(graph)
    shapes = dict(enumerate(graph.shapes))
    steps = _with_spreads(_fused(graph), shapes)
    return Program(tuple(_with_cuts(list(steps), shapes)), shapes)


def _fused(graph: Graph) -> Iterator[Step]:
    """Sums and ReLUs join the layer before them where nothing else reads that layer."""
    values: dict[int, int] = {}

    def only_reader(number: int, *kinds: Kind) -> int | None:
        found = graph.readers[number]
        return found[0] if len(found) == 1 and graph.nodes[found[0]].kind in kinds else None

    for number, (node, sources) in enumerate(graph.read):
        if number in values:
            continue
        action = _action(node, sources)
        joined, reads = [number], [values[i] for i in node.inputs]
        if action.startswith("convolve") and (added := only_reader(number, Kind.ADD)):
            (other,) = (i for i in graph.nodes[added].inputs if i != number)
            if other in values:
                reads.append(values[other])
                joined.append(added)
        limit = LIMITS.get(node.kind, "LINEAR")
        if node.kind in CAN_LIMIT and (relu := only_reader(joined[-1], *LIMITS)):
            limit = LIMITS[graph.nodes[relu].kind]
            joined.append(relu)
        values.update(dict.fromkeys(joined, joined[-1]))
        yield Step(action, node, tuple(reads), joined[-1], limit)


def _action(node: Node, sources: Sequence[Shape]) -> str:
    """The function for a node, which may depend on what it reads."""
    match node.kind:
        case Kind.CONVOLUTION | Kind.LINEAR | Kind.TRANSPOSED_CONVOLUTION:
            return _layer_action(node, sources[0])
        case Kind.MULTIPLY if sources[0] != sources[1]:
            return "multiply_planes"
        case Kind.GELU if node.approximate:
            return "gelu_by_tanh"
    return ACTIONS[node.kind]


def _layer_action(node: Node, source: Shape) -> str:
    if node.groups > 1:
        depthwise = node.groups == source[0] and node.kind == Kind.CONVOLUTION
        strided = node.stride != (1, 1)
        return "convolve_planes" if depthwise and strided else "convolve_groups"
    one_pixel = source[1:] == (1, 1) and (node.kernel, node.padding, node.ends) == ONE_PIXEL
    return "connect" if one_pixel and node.kind != Kind.TRANSPOSED_CONVOLUTION else "convolve"


ONE_PIXEL = ((1, 1), (0, 0), (0, 0))


def _with_spreads(steps: Iterable[Step], shapes: dict[int, Shape]) -> Iterator[Step]:
    """A transposed convolution is one of pixels that lie a stride apart, its kernel turned."""
    for step in steps:
        node = step.node
        if node.kind != Kind.TRANSPOSED_CONVOLUTION:
            yield step
            continue
        source, *others = step.reads
        if node.stride != (1, 1):
            channels, *sides = shapes[source]
            rows, columns = ((n - 1) * s + 1 for n, s in zip(sides, node.stride, strict=True))
            value = _added(shapes, (channels, rows, columns))
            yield Step("spread", node, (source,), value)
            source = value
        yield replace(step, node=turned(node), reads=(source, *others))


def turned(node: Node) -> Node:
    """The convolution that a transposed one is; its padding may be below zero."""
    padding, end = (
        tuple(span - 1 - cut + more for span, cut, more in zip(node.span, cuts, added, strict=True))
        for cuts, added in ((node.padding, (0, 0)), (node.ends, node.output_padding))
    )
    return replace(node, kind=Kind.CONVOLUTION, stride=(1, 1), padding=padding, padding_end=end)


def _with_cuts(steps: Sequence[Step], shapes: dict[int, Shape]) -> Iterator[Step]:
    """A convolution with a stride reads parts of planes; those of one stride share them."""
    groups: dict[tuple[int, Pair], list[Step]] = {}
    for step in steps:
        if step.is_strided and step.action != "convolve_planes":
            groups.setdefault((step.reads[0], step.node.stride), []).append(step)
    values: dict[tuple[int, Pair], int] = {}
    for step in steps:
        if not step.is_strided:
            yield step
            continue
        source, *others = step.reads
        group = source, step.node.stride
        if step.action == "convolve_planes":
            cut = _cut([step], shapes)
            yield replace(step, cut=cut, scratch=_added(shapes, (1, *cut.rows_and_columns)))
            continue
        cut = _cut(groups[group], shapes)
        if group not in values:
            values[group] = _added(shapes, (shapes[source][0], *cut.rows_and_columns))
            yield Step("split", step.node, (source,), values[group], cut=cut)
        yield replace(step, reads=(values[group], *others), cut=cut)


def _added(shapes: dict[int, Shape], shape: Shape) -> int:
    """The number of a value that no node gives."""
    shapes[len(shapes)] = shape
    return len(shapes) - 1


def _cut(readers: Sequence[Step], shapes: dict[int, Shape]) -> Cut:
    """Parts that are large enough for all convolutions that read them."""
    stride = readers[0].node.stride
    margins, sizes = [], []
    for axis in (0, 1):
        margin = max(step.node.padding[axis] for step in readers)
        side = shapes[readers[0].reads[0]][1 + axis]
        needed = [(side + margin - 1) // stride[axis] + 1]
        for step in readers:
            last_tap = step.node.span[axis] - 1 - step.node.padding[axis] + margin
            needed.append(shapes[step.gives][1 + axis] + last_tap // stride[axis])
        margins.append(margin)
        sizes.append(max(needed))
    return Cut(stride, (margins[0], margins[1]), (sizes[0], sizes[1]))
