"""A network as the few calls that C code makes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from fedtiny.graph.ir import LAYERS, Graph, Kind, Node, Pair, Shape
from fedtiny.graph.passes import for_inference

ACTIONS = {
    Kind.INPUT: "load",
    Kind.CONVOLUTION: "convolve",
    Kind.LINEAR: "connect",
    Kind.BATCH_NORM: "normalise",
    Kind.RELU: "rectify",
    Kind.ADD: "add",
    Kind.MAX_POOL: "max_pool",
    Kind.MEAN_POOL: "mean_pool",
    Kind.ADAPTIVE_POOL: "adaptive_pool",
    Kind.FLATTEN: "flatten",
}
"""The function of the C runtime for each operation; dropout is left out."""
CAN_RECTIFY = (*LAYERS, Kind.BATCH_NORM, Kind.ADD)


@dataclass(frozen=True)
class Cut:
    """How planes are cut into `stride` parts along each axis, for convolutions with a stride.

    Each part has `size` rows and columns; the plane has `margin` rows and columns of zeros before
    its own.
    """

    stride: Pair
    margin: Pair
    size: Pair


@dataclass(frozen=True)
class Step:
    """One call: a node with the sum and the ReLU behind it, or what cuts planes for convolutions.

    Values go by the number of the node that gives them. What is added comes second in `reads`.
    """

    action: str
    node: Node
    reads: tuple[int, ...]
    gives: int
    relu: bool = False
    cut: Cut | None = None

    @property
    def name(self) -> str:
        """What its tables are called in C, such as node5_layer1_0_conv1; no two are the same."""
        return f"node{self.gives}_" + re.sub(r"[^A-Za-z0-9]", "_", self.node.name)

    @property
    def may_overwrite(self) -> tuple[int, ...]:
        """Values in whose place the result may be written, pixel by pixel."""
        match self.action:
            case "convolve":
                return tuple(v for v in self.reads[1:] if v != self.reads[0])
            case "add":
                return self.reads
            case "normalise" | "rectify":
                return self.reads[:1]
        return ()

    @property
    def is_strided(self) -> bool:
        """Whether it is a convolution that skips pixels."""
        return self.action == "convolve" and self.node.stride != (1, 1)


@dataclass(frozen=True)
class Program:
    """All steps in order, and the channels, rows and columns of the values between them."""

    steps: tuple[Step, ...]
    shapes: dict[int, Shape]

    def last_reads(self) -> dict[int, int]:
        """The number of the last step that reads each value; the result is read after all."""
        found = {v: i for i, step in enumerate(self.steps) for v in (*step.reads, step.gives)}
        return {**found, self.steps[-1].gives: len(self.steps)}


def program(graph: Graph) -> Program:
    """The steps of a network; convolutions with a stride have one before them that cuts planes."""
    graph = for_inference(graph)
    steps, shapes = _fused(graph), dict(enumerate(graph.shapes))
    groups: dict[tuple[int, Pair], list[Step]] = {}
    for step in steps:
        if step.is_strided:
            groups.setdefault((step.reads[0], step.node.stride), []).append(step)
    values = {group: len(shapes) + i for i, group in enumerate(groups)}
    made: list[Step] = []
    for step in steps:
        if step.is_strided:
            source, *others = step.reads
            cut = _cut(groups[source, step.node.stride], shapes)
            value = values[source, step.node.stride]
            if value not in shapes:
                shapes[value] = (shapes[source][0], prod(cut.stride) * cut.size[0], cut.size[1])
                made.append(Step("split", step.node, (source,), value, cut=cut))
            step = replace(step, reads=(value, *others), cut=cut)
        made.append(step)
    return Program(tuple(made), shapes)


def _fused(graph: Graph) -> list[Step]:
    """Sums and ReLUs join the layer before them where nothing else reads that layer."""
    values: dict[int, int] = {}
    steps: list[Step] = []

    def only_reader(number: int, kind: Kind) -> int | None:
        found = graph.readers[number]
        return found[0] if len(found) == 1 and graph.nodes[found[0]].kind == kind else None

    for number, node in enumerate(graph.nodes):
        if number in values:
            continue
        joined, reads = [number], [values[i] for i in node.inputs]
        if node.kind == Kind.CONVOLUTION and (added := only_reader(number, Kind.ADD)):
            (other,) = (i for i in graph.nodes[added].inputs if i != number)
            if other in values:
                reads.append(values[other])
                joined.append(added)
        relu = only_reader(joined[-1], Kind.RELU) if node.kind in CAN_RECTIFY else None
        if relu:
            joined.append(relu)
        values.update(dict.fromkeys(joined, joined[-1]))
        steps.append(Step(ACTIONS[node.kind], node, tuple(reads), joined[-1], relu is not None))
    return steps


def _cut(readers: Sequence[Step], shapes: dict[int, Shape]) -> Cut:
    """Parts that are large enough for all convolutions that read them."""
    stride = readers[0].node.stride
    margins, sizes = [], []
    for axis in (0, 1):
        margin = max(step.node.padding[axis] for step in readers)
        side = shapes[readers[0].reads[0]][1 + axis]
        needed = [(side + margin - 1) // stride[axis] + 1]
        for step in readers:
            last_tap = step.node.kernel[axis] - 1 - step.node.padding[axis] + margin
            needed.append(shapes[step.gives][1 + axis] + last_tap // stride[axis])
        margins.append(margin)
        sizes.append(max(needed))
    return Cut(stride, (margins[0], margins[1]), (sizes[0], sizes[1]))
