"""A network as the few calls that C code makes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fedtiny.graph.ir import Graph, Kind, Pair, Shape
from fedtiny.graph.passes import Fused, drop_dropout, drop_idle, fuse

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
class Step(Fused):
    """One call; a convolution that reads planes which were cut, or the call that cuts them."""

    action: str
    cut: Cut | None = None

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
    graph = drop_dropout(drop_idle(graph))
    steps = [Step(s.node, s.reads, s.gives, s.relu, ACTIONS[s.node.kind]) for s in fuse(graph)]
    shapes = dict(enumerate(graph.shapes))
    groups: dict[tuple[int, Pair], list[Step]] = {}
    for step in steps:
        if step.is_strided:
            groups.setdefault((step.reads[0], step.node.stride), []).append(step)
    values = {group: len(shapes) + i for i, group in enumerate(groups)}
    made: list[Step] = []
    for step in steps:
        if not step.is_strided:
            made.append(step)
            continue
        source, group = step.reads[0], (step.reads[0], step.node.stride)
        cut, value = _cut(groups[group], shapes), values[group]
        if value not in shapes:
            shapes[value] = (shapes[source][0], prod(cut.stride) * cut.size[0], cut.size[1])
            made.append(Step(step.node, (source,), value, False, "split", cut))
        made.append(replace(step, reads=(value, *step.reads[1:]), cut=cut))
    return Program(tuple(made), shapes)


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
