"""A network as the few calls that C code makes: steps that belong together are one call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from fedtiny.export import checks
from fedtiny.graph.ir import Graph, Kind, Node, Pair

Dimensions = tuple[int, int, int]

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
CAN_RECTIFY = ("convolve", "connect", "normalise", "add")


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
    """One call: what it reads and gives are numbers of values."""

    action: str
    node: Node
    reads: tuple[int, ...]
    gives: int
    relu: bool = False
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


@dataclass(frozen=True)
class Program:
    """All steps in order, and the channels, rows and columns of the values between them."""

    steps: tuple[Step, ...]
    shapes: dict[int, Dimensions]

    def last_reads(self) -> dict[int, int]:
        """The number of the last step that reads each value; the result is read after all."""
        found = {v: i for i, step in enumerate(self.steps) for v in (*step.reads, step.gives)}
        return {**found, self.steps[-1].gives: len(self.steps)}


def program(graph: Graph) -> Program:
    """The steps of a network; its last node is its result."""
    shapes = dict(enumerate(checks.shapes(graph)))
    return _with_cuts(_Joining(graph.nodes).run(), shapes)


class _Joining:
    """Sums and ReLUs join the layer before them where nothing else reads that layer."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.needed = checks.needed(nodes)
        self.readers = {
            i: [j for j in sorted(self.needed) for source in nodes[j].inputs if source == i]
            for i in self.needed
        }
        self.values: dict[int, int] = {}
        self.steps: list[Step] = []

    def run(self) -> list[Step]:
        for number in sorted(self.needed):
            if number in self.values:
                continue
            node = self.nodes[number]
            if node.kind == Kind.DROPOUT:
                self.values[number] = self.values[node.inputs[0]]
            else:
                self._step(number, node)
        return self.steps

    def _step(self, number: int, node: Node) -> None:
        action, joined = ACTIONS[node.kind], [number]
        reads = [self.values[i] for i in node.inputs]
        if action == "convolve" and (added := self._only_reader(number, Kind.ADD)):
            (other,) = (i for i in self.nodes[added].inputs if i != number)
            if other in self.values:
                reads.append(self.values[other])
                joined.append(added)
        relu = self._only_reader(joined[-1], Kind.RELU) if action in CAN_RECTIFY else None
        if relu:
            joined.append(relu)
        self.values.update(dict.fromkeys(joined, joined[-1]))
        self.steps.append(Step(action, node, tuple(reads), joined[-1], relu is not None))

    def _only_reader(self, number: int, kind: Kind) -> int | None:
        readers = self.readers[number]
        return readers[0] if len(readers) == 1 and self.nodes[readers[0]].kind == kind else None


def _with_cuts(steps: Sequence[Step], shapes: dict[int, Dimensions]) -> Program:
    """Put a step before convolutions with a stride that cuts the planes which they read."""
    groups: dict[tuple[int, Pair], list[Step]] = {}
    for step in filter(is_strided, steps):
        groups.setdefault((step.reads[0], step.node.stride), []).append(step)
    values = {group: len(shapes) + i for i, group in enumerate(groups)}
    made: list[Step] = []
    for step in steps:
        if not is_strided(step):
            made.append(step)
            continue
        source, group = step.reads[0], (step.reads[0], step.node.stride)
        cut, value = _cut(groups[group], shapes), values[group]
        if value not in shapes:
            shapes[value] = (shapes[source][0], prod(cut.stride) * cut.size[0], cut.size[1])
            made.append(Step("split", step.node, (source,), value, cut=cut))
        made.append(replace(step, reads=(value, *step.reads[1:]), cut=cut))
    return Program(tuple(made), shapes)


def is_strided(step: Step) -> bool:
    """Whether a convolution skips pixels."""
    return step.action == "convolve" and step.node.stride != (1, 1)


def _cut(readers: Sequence[Step], shapes: dict[int, Dimensions]) -> Cut:
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
