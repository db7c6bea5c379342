"""Where the values of a program lie in one arena of memory."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from fedtiny.export.c_steps import Program, Step
from fedtiny.graph.ir import Pair, Shape
from fedtiny.graph.plan import place_tightly

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

    @property
    def ways(self) -> tuple[int, int, int]:
        """How far apart neighbouring channels, rows and columns lie."""
        return self.plane, self.pitch, 1

    @property
    def is_plain(self) -> bool:
        """Whether it begins where it starts and nothing lies between its pixels."""
        _, rows, columns = self.shape
        return (self.origin, self.pitch, self.plane) == (0, columns, rows * columns)


@dataclass(eq=False)
class _Buffer:
    """A piece of the arena that holds one value, or several after or beside each other."""

    shape: Shape
    born: int
    dies: int = -1
    margin: Pair = (0, 0)
    pitch: int = 0
    start: int = 0
    first: dict[int, int] = field(default_factory=dict)
    """By value, the first of the buffer's channels that it lies in."""

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

    def tensor(self, value: int, shapes: Mapping[int, Shape]) -> Tensor:
        """One of its values; it has the name of the first that lay there."""
        shape, first = shapes[value], self.first[value]
        alike = (v for v, at in self.first.items() if (at, shapes[v]) == (first, shape))
        name = f"tensor{next(alike)}"
        if shape[1:] != self.shape[1:]:  # other rows and columns of what is one piece
            return Tensor(name, self.start, shape, shape[2], shape[1] * shape[2], 0)
        top, left = self.margin
        plane = (shape[1] + top) * self.pitch
        return Tensor(
            name, self.start, shape, self.pitch, plane, first * plane + top * self.pitch + left
        )


@dataclass(frozen=True)
class Plan:
    """The tensor of each value, the arena's size in floats, and what must be cleared before use."""

    tensors: Mapping[int, Tensor]
    arena: int
    cleared: Mapping[int, int]
    """Floats to set to zero before the step that gives a value, where zeros surround its planes."""


def plan(program: Program, zeros: Mapping[int, int] | None = None) -> Plan:
    """Place all values of a program.

    `zeros` has the integer that stands for 0 in each value, where that is not the same for all:
    those that share a piece, and so the zeros around it, agree in it.
    """
    owner = _Placing(program, zeros or {}).owner
    buffers = list(dict.fromkeys(owner.values()))
    arena = place_tightly(buffers)
    tensors = {v: owner[v].tensor(v, program.shapes) for v in owner}
    return Plan(tensors, arena + OVERREAD, dict(_cleared(program, buffers)))


def _cleared(program: Program, buffers: Iterable[_Buffer]) -> Iterator[tuple[int, int]]:
    """The first value of every buffer that has zeros in it, and the buffer's size."""
    order = [v for step in program.steps for v in (step.gives, step.scratch) if v is not None]
    born = {value: number for number, value in enumerate(order)}
    sparse = {step.gives for step in program.steps if step.action in ("split", "spread")}
    sparse |= {step.scratch for step in program.steps if step.scratch is not None}
    for buffer in buffers:
        if buffer.margin != (0, 0) or sparse & buffer.first.keys():
            yield min(buffer.first, key=born.__getitem__), buffer.size


class _Placing:
    """The buffer of each value of a program."""

    def __init__(self, program: Program, zeros: Mapping[int, int]) -> None:
        self.program, self.shapes, self.zeros = program, program.shapes, zeros
        self.last = program.last_reads()
        self.owner: dict[int, _Buffer] = {}
        for number, step in enumerate(program.steps):
            self._place(number, step)
        self._widen()
        self._reshape_in_place()

    def _place(self, number: int, step: Step) -> None:
        if step.scratch is not None:
            self._hold(step.scratch, _Buffer(self.shapes[step.scratch], number), number)
        replaced = self._replaced(number, step)
        if replaced is None:
            buffer, first = _Buffer(self.shapes[step.gives], number), 0
        else:
            buffer, first = self.owner[replaced], self.owner[replaced].first[replaced]
        self._hold(step.gives, buffer, self.last[step.gives], first)
        if step.action == "concatenate" and step.node.axis == 0:
            self._join(step)

    def _hold(self, value: int, buffer: _Buffer, dies: int, first: int = 0) -> None:
        buffer.first[value] = first
        buffer.dies = max(buffer.dies, dies)
        self.owner[value] = buffer

    def _replaced(self, number: int, step: Step) -> int | None:
        """A value that ends here, and in whose place the result may lie."""
        for value in step.may_overwrite:
            needed = [self.owner[v] for v in step.reads if v != value and step.convolves]
            fits = self.shapes[value] == self.shapes[step.gives] and self._agree(value, step.gives)
            if fits and self.last[value] == number and self.owner[value] not in needed:
                return value
        return None

    def _agree(self, *values: int) -> bool:
        """Whether the same integer stands for 0 in all of them."""
        return len({self.zeros.get(value) for value in values}) == 1

    def _join(self, step: Step) -> None:
        """Values that lie alone in a buffer are written where all are joined, without a copy.

        From then on, what lies in the buffer is needed until none of it is.
        """
        joined, first = self.owner[step.gives], 0
        for value in step.reads:
            part = self.owner[value]
            alone = part is not joined and part.shape == self.shapes[value]
            if alone and self._agree(*joined.first, *part.first):
                for other, channel in part.first.items():
                    self._hold(other, joined, part.dies, first + channel)
                joined.born = min(joined.born, part.born)
            first += self.shapes[value][0]
        self.last.update(dict.fromkeys(joined.first, max(self.last[v] for v in joined.first)))

    def _widen(self) -> None:
        """A convolution without a stride reads its input in place, with zeros around each plane."""
        for buffer in self.owner.values():
            buffer.widen((0, 0), 0)
        for step in self.program.steps:
            if step.convolves and step.cut is None:
                sides = zip(step.node.padding, step.node.ends, strict=True)
                top, left = (max(0, *ends) for ends in sides)
                self.owner[step.reads[0]].widen((top, left), self.shapes[step.gives][2])

    def _reshape_in_place(self) -> None:
        """Where nothing lies between the planes, values of another shape are there already."""
        for number, step in enumerate(self.program.steps):
            if step.action != "flatten" or self.last[step.reads[0]] != number:
                continue
            source, flat = self.owner[step.reads[0]], self.owner[step.gives]
            count = prod(self.shapes[step.gives])
            fits = source is not flat and source.size == flat.size == count
            if fits and self._agree(*source.first, *flat.first):
                for value in flat.first:
                    self._hold(value, source, flat.dies)


def is_in_place(step: Step, plan: Plan) -> bool:
    """Whether values have another shape, or are joined, without doing anything."""
    match step.action:
        case "concatenate":
            return not any(copied(step, plan))
        case "flatten":
            return plan.tensors[step.reads[0]].start == plan.tensors[step.gives].start
    return False


def copied(step: Step, plan: Plan) -> Iterator[tuple[Tensor, int]]:
    """What must be copied to where all is joined, and how many floats behind its first pixel."""
    out, at = plan.tensors[step.gives], 0
    for value in step.reads:
        read = plan.tensors[value]
        if (read.start, read.origin) != (out.start, out.origin + at):
            yield read, at
        at += read.shape[step.node.axis] * out.ways[step.node.axis]
