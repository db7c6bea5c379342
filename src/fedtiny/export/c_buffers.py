"""In which pieces of memory the values of a program lie, and how their rows do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from fedtiny.export.c_bands import Schedule, Window
from fedtiny.export.c_steps import Program, Step
from fedtiny.graph.ir import Pair, Shape


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
class Buffer:
    """A piece of the arena that holds one value, or several after or beside each other."""

    shape: Shape
    born: int
    dies: int = -1
    margin: Pair = (0, 0)
    pitch: int = 0
    start: int = 0
    first: dict[int, int] = field(default_factory=dict)
    """By value, the first of the buffer's channels that it lies in."""
    window: Window | None = None
    """The rows that are held, if not all are."""

    @property
    def size(self) -> int:
        """Neighbouring rows and planes share the zeros between them."""
        channels, rows, _ = self.shape
        top, left = self.margin
        return (channels * (rows + top) + top) * self.pitch + left

    @property
    def leader(self) -> int:
        """The value that lay there first."""
        return next(iter(self.first))

    @property
    def moved(self) -> int:
        """Values that move up when rows are dropped, of all bands together."""
        return self.size // self.window.rows * self.window.moved if self.window else 0

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


class Placing:
    """The buffer of each value of a program, whose first steps may be computed by bands."""

    def __init__(
        self, program: Program, zeros: Mapping[int, int], schedule: Schedule | None
    ) -> None:
        self.program, self.shapes, self.zeros = program, dict(program.shapes), zeros
        self.schedule = schedule
        self.last = program.last_reads()
        self.owner: dict[int, Buffer] = {}
        for number, step in enumerate(program.steps):
            self._place(number, step)
        if schedule is not None:
            self._roll(schedule)
        self._widen()
        self._reshape_in_place()
        self.buffers = list(dict.fromkeys(self.owner.values()))

    @property
    def held_at_a_time(self) -> list[int]:
        """How many values are held at each step: no arena is smaller than the most."""
        return [
            sum(b.size for b in self.buffers if b.born <= number <= b.dies)
            for number in range(len(self.program.steps))
        ]

    def _place(self, number: int, step: Step) -> None:
        if step.scratch is not None:
            self._hold(step.scratch, Buffer(self.shapes[step.scratch], number), number)
        replaced = self._replaced(number, step)
        if replaced is None:
            buffer, first = Buffer(self.shapes[step.gives], number), 0
        else:
            buffer, first = self.owner[replaced], self.owner[replaced].first[replaced]
        self._hold(step.gives, buffer, self.last[step.gives], first)
        if step.action == "concatenate" and step.node.axis == 0:
            self._join(step)

    def _hold(self, value: int, buffer: Buffer, dies: int, first: int = 0) -> None:
        buffer.first[value] = first
        buffer.dies = max(buffer.dies, dies)
        self.owner[value] = buffer

    def _replaced(self, number: int, step: Step) -> int | None:
        """A value that ends here, and in whose place the result may lie."""
        for value in step.may_overwrite:
            needed = [self.owner[v] for v in step.reads if v != value and step.convolves]
            fits = self.shapes[value] == self.shapes[step.gives] and self._agree(value, step.gives)
            ends = self.last[value] == number and not self._is_read_later(step, value)
            if fits and ends and self.owner[value] not in needed:
                return value
        return None

    def _is_read_later(self, step: Step, value: int) -> bool:
        """Whether a later band reads rows that a step of bands would write over."""
        if self.schedule is None or step.gives not in self.schedule.written:
            return False
        return not self.schedule.may_replace(step, value)

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

    def _roll(self, schedule: Schedule) -> None:
        """What bands use lives through all of them; of most values a few rows are held."""
        scratch = {step.scratch: step for step in schedule.steps if step.scratch is not None}
        for buffer in dict.fromkeys(self.owner[v] for v in (*schedule.written, *scratch)):
            buffer.born = min(buffer.born, 1)
            buffer.dies = max(buffer.dies, len(schedule.steps))
            value = buffer.leader
            if value in scratch:
                self._resize(buffer, schedule.scratch_rows(scratch[value]))
            elif not schedule.complete & buffer.first.keys():
                buffer.window = schedule.window(buffer.first)
                parts = self.shapes[value][1] // schedule.rows[value]
                self._resize(buffer, parts * buffer.window.rows)

    def _resize(self, buffer: Buffer, rows: int) -> None:
        channels, _, columns = buffer.shape
        buffer.shape = channels, rows, columns
        self.shapes.update(dict.fromkeys(buffer.first, buffer.shape))

    def _widen(self) -> None:
        """A convolution without a stride reads its input in place, with zeros around each plane.

        Rows that are held for bands have those above and below among them.
        """
        for buffer in self.owner.values():
            buffer.widen((0, 0), 0)
        for step in self.program.steps:
            if step.convolves and step.cut is None:
                sides = zip(step.node.padding, step.node.ends, strict=True)
                top, left = (max(0, *ends) for ends in sides)
                read = self.owner[step.reads[0]]
                read.widen((0 if read.window else top, left), self.shapes[step.gives][2])
        if self.schedule is not None:
            for value in self.schedule.written:
                if not self.owner[value].window:
                    self.owner[value].widen((self.schedule.margin(value), 0), 0)

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
