"""Where the values of a program lie in one arena of memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from fedtiny.export.c_program import Program, Step
from fedtiny.graph.ir import Pair, Shape
from fedtiny.graph.plan import place

OVERREAD = 64  # the widest run of sums: it may read and write this far behind what it needs


@dataclass(frozen=True)
class Tensor:
    """A value in the arena; pixel (c, y, x) is at start + origin + c * plane + y * pitch + x."""

    name: str
    start: int
    shape: Shape
    pitch: int
    plane: int
    origin: int


@dataclass
class _Buffer:
    """A piece of the arena that holds one value, or several of one shape after each other."""

    shape: Shape
    born: int
    dies: int = -1
    margin: Pair = (0, 0)
    pitch: int = 0
    start: int = 0
    values: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Neighbouring rows and planes share the zeros between them."""
        channels, rows, _ = self.shape
        top, left = self.margin
        return (channels * (rows + top) + top) * self.pitch + left

    def widen(self, margin: Pair, pitch: int) -> None:
        """Leave room for zeros around each plane."""
        self.margin = (max(self.margin[0], margin[0]), max(self.margin[1], margin[1]))
        self.pitch = max(self.pitch, pitch, self.shape[2] + self.margin[1])

    def tensor(self, value: int, shape: Shape) -> Tensor:
        """One of its values; a flattened one has another shape."""
        if shape != self.shape:
            return Tensor(f"tensor{value}", self.start, shape, 1, 1, 0)
        top, left = self.margin
        plane, origin = (shape[1] + top) * self.pitch, top * self.pitch + left
        return Tensor(f"tensor{self.values[0]}", self.start, shape, self.pitch, plane, origin)


@dataclass(frozen=True)
class Plan:
    """The tensor of each value, the arena's size in floats, and what must be cleared before use."""

    tensors: Mapping[int, Tensor]
    arena: int
    cleared: Mapping[int, int]
    """Floats to set to zero before the step that gives a value, where zeros surround its planes."""


def plan(program: Program) -> Plan:
    """Place all values of a program."""
    last = program.last_reads()
    owner: dict[int, _Buffer] = {}
    for number, step in enumerate(program.steps):
        reused = next((v for v in step.may_overwrite if last[v] == number), None)
        value = step.gives
        owner[value] = _Buffer(program.shapes[value], number) if reused is None else owner[reused]
        owner[value].values.append(value)
        owner[value].dies = max(owner[value].dies, last[value])
    _widen(program, owner)
    _flatten_in_place(program, owner, last)
    buffers = list({id(buffer): buffer for buffer in owner.values()}.values())
    arena = place(buffers)
    tensors = {v: owner[v].tensor(v, program.shapes[v]) for v in owner}
    cleared = {
        buffer.values[0]: buffer.size
        for buffer in buffers
        if buffer.margin != (0, 0) or program.steps[buffer.born].action == "split"
    }
    return Plan(tensors, arena + OVERREAD, cleared)


def _widen(program: Program, owner: Mapping[int, _Buffer]) -> None:
    """A convolution without a stride reads its input in place, with zeros around each plane."""
    for buffer in owner.values():
        buffer.widen((0, 0), 0)
    for step in program.steps:
        if step.action == "convolve" and step.cut is None:
            columns = program.shapes[step.gives][2]
            owner[step.reads[0]].widen(step.node.padding, columns)


def _flatten_in_place(program: Program, owner: dict[int, _Buffer], last: dict[int, int]) -> None:
    """Where nothing lies between the planes, flat values are what is there already."""
    for number, step in enumerate(program.steps):
        if step.action != "flatten":
            continue
        source, flat = owner[step.reads[0]], owner[step.gives]
        if source.size == prod(source.shape) and last[step.reads[0]] == number:
            source.dies = flat.dies
            source.values += flat.values
            owner.update(dict.fromkeys(flat.values, source))


def is_in_place(step: Step, plan: Plan) -> bool:
    """Whether a value is flat without doing anything."""
    read, flat = plan.tensors[step.reads[0]], plan.tensors[step.gives]
    return step.action == "flatten" and read.start == flat.start
