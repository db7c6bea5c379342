"""The first steps of a program by bands of rows: which rows each computes, and which are held.

A band is a few rows of the image and all that the steps make of them. What a step reads of earlier
bands is still held, so no row is computed twice.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple

from fedtiny.export.c_steps import PIXEL_BY_PIXEL, Program, Step

OF_WHOLE_PLANES = ("group_norm", "layer_norm", "softmax", "multiply_planes")
BANDED = (
    *("convolve", "convolve_groups", "convolve_planes", "split", "max_pool"),
    *(action for action in PIXEL_BY_PIXEL if action not in OF_WHOLE_PLANES),
)
"""What makes a row of a few rows."""
NEVER = 1 << 30


class Reach(NamedTuple):
    """Which rows a row is made of: `span`, from `stride` times its number less `padding` on."""

    span: int
    stride: int
    padding: int

    def first(self, row: int) -> int:
        """The first row that is read for one; those below 0 are padding."""
        return row * self.stride - self.padding

    def end(self, rows: int) -> int:
        """Behind the last row that is read for the first `rows`."""
        return self.first(rows - 1) + self.span

    def given(self, rows: int) -> int:
        """How many rows are made of the first `rows`."""
        return max(0, (rows + self.padding - self.span) // self.stride + 1)


def reach(step: Step, place: int) -> Reach:
    """Of a step into one of the values that it reads."""
    node = step.node
    if place or step.action in PIXEL_BY_PIXEL:
        return Reach(1, 1, 0)
    if step.action == "split":
        assert step.cut is not None
        return Reach(step.cut.stride[0], step.cut.stride[0], step.cut.margin[0])
    if step.cut is None or step.scratch is not None:
        return Reach(node.span[0], node.stride[0], node.padding[0])
    last = node.span[0] - 1 - node.padding[0] + step.cut.margin[0]
    return Reach(last // step.cut.stride[0] + 1, 1, 0)


class Band(NamedTuple):
    """What a step does in a band, as C reads it; rows count from the first that is held."""

    rows: int
    given: int
    read: int
    rows_read: int
    above: int
    added: int
    dropped: int
    zeros: int


class Window(NamedTuple):
    """The rows that are held of values in one place: how many, and the first, by band."""

    rows: int
    first: list[int]
    ends: list[int]
    """Behind the last, with the rows of padding below."""

    def change(self, band: int, rows: int) -> tuple[int, int]:
        """How many rows are dropped in a band, and how many come that lie behind the last."""
        before, after = (max(rows, self.ends[b]) for b in (band - 1, band))
        return self.first[band] - self.first[band - 1], after - before


class Schedule:
    """How many rows each step has given after each band; before the first, none.

    Rows of padding below a value count, so that its last rows come as slowly as the others.
    """

    def __init__(self, program: Program, steps: int, height: int) -> None:
        self.program = program
        self.steps = program.steps[1 : 1 + steps]
        self.image = program.steps[0].gives
        image_rows = program.shapes[self.image][1]
        self.rows = {self.image: image_rows, **{s.gives: _rows(s, program) for s in self.steps}}
        self.given: dict[int, list[int]] = {value: [0] for value in self.rows}
        while any(self.given[value][-1] < rows for value, rows in self.rows.items()):
            self.given[self.image].append(self.given[self.image][-1] + height)
            for step in self.steps:
                self.given[step.gives].append(self._given(step))

    def _given(self, step: Step) -> int:
        held = enumerate(self.given[value][-1] for value in step.reads)
        return min(reach(step, place).given(rows) for place, rows in held)

    @property
    def count(self) -> int:
        """The number of bands."""
        return len(self.given[self.image]) - 1

    def spans(self, step: Step) -> list[tuple[int, int]]:
        """The first row that a step gives in each band, and the one behind its last."""
        rows = self.rows[step.gives]
        return list(pairwise(min(rows, given) for given in self.given[step.gives]))

    @cached_property
    def readers(self) -> dict[int, list[tuple[Step, Reach]]]:
        """The steps of bands that read each value."""
        found: dict[int, list[tuple[Step, Reach]]] = {value: [] for value in self.rows}
        for step in self.steps:
            for place, value in enumerate(step.reads):
                found[value].append((step, reach(step, place)))
        return found

    @cached_property
    def whole(self) -> set[int]:
        """Values that are held with all rows: the image, and what is read behind the bands."""
        behind = self.program.steps[1 + len(self.steps) :]
        return {self.image, self.program.steps[-1].gives, *(v for s in behind for v in s.reads)}

    def needed(self, value: int, band: int) -> int:
        """The first row that is read after a band."""
        left = (
            reach.first(self.given[step.gives][band])
            for step, reach in self.readers[value]
            if self.given[step.gives][band] < self.rows[step.gives]
        )
        return min(left, default=NEVER)

    def may_replace(self, step: Step, value: int) -> bool:
        """Whether nothing that a step writes over is read in a later band."""
        ends = (end for _, end in self.spans(step))
        return all(max(0, self.needed(value, b)) >= end for b, end in enumerate(ends, 1))

    def padding(self, value: int) -> int:
        """Rows of zeros that are read below a value."""
        ends = (reach.end(self.rows[step.gives]) for step, reach in self.readers[value])
        return max(0, max(ends, default=0) - self.rows[value])

    def margin(self, value: int) -> int:
        """Rows of zeros that are read above or below it."""
        above = (reach.padding for _, reach in self.readers[value])
        return max(0, self.padding(value), *above)

    def window(self, values: Collection[int]) -> Window:
        """What is held of values that take each other's place."""
        zeros = max(self.padding(value) for value in values)
        end = max(self.rows[value] for value in values) + zeros
        given = [[min(end, rows) for rows in self.given[value]] for value in values]
        ends = [max(rows) for rows in zip(*given, strict=True)]
        needed = ([self.needed(v, band) for band in range(self.count)] for v in values)
        starts = [min(rows) for rows in zip(*given, *needed, strict=False)]
        most = max(end - start for start, end in zip(starts, ends[1:], strict=True))
        first = [starts[0]]
        for end in ends[1:]:
            first.append(max(first[-1], end - most))
        return Window(most, first, ends)

    def most(self, step: Step) -> int:
        """The most rows that a step gives in a band."""
        return max(end - start for start, end in self.spans(step))

    def calls(self, step: Step) -> int:
        """The number of bands in which a step gives rows."""
        return sum(end > start for start, end in self.spans(step))

    def scratch_rows(self, step: Step) -> int:
        """Of the parts of a plane that a step cuts for itself."""
        assert step.cut is not None
        rows = self.most(step) + (step.node.span[0] - 1) // step.cut.stride[0]
        return rows * prod(step.cut.stride)

    def bands(self, step: Step, windows: Mapping[int, Window], leads: bool) -> Iterator[Band]:
        """What a step does; the first step of a window `leads`: it drops rows, and pads them."""
        own = windows.get(step.gives)
        for band, (start, end) in enumerate(self.spans(step), 1):
            dropped, zeros = own.change(band, self.rows[step.gives]) if own and leads else (0, 0)
            read, rows_read, above = self._read(step, start, end)
            held = [windows[v].first[band] if v in windows else 0 for v in step.reads]
            yield Band(
                rows=end - start,
                given=self.given[step.gives][band - 1] - (own.first[band] if own else 0),
                read=read - held[0],
                rows_read=rows_read,
                above=above,
                added=start - held[-1],
                dropped=dropped,
                zeros=zeros,
            )

    def _read(self, step: Step, start: int, end: int) -> tuple[int, int, int]:
        """From which row on, how many, and how many a first window has above them."""
        touched = reach(step, 0)
        first, last = touched.first(start), touched.end(end)
        if step.action == "max_pool":
            inside = max(first, 0)
            return inside, min(last, self.rows[step.reads[0]]) - inside, inside - first
        if step.convolves and step.scratch is None:
            return start, last - first, 0  # its taps count from there
        return first, last - first, 0


def _rows(step: Step, program: Program) -> int:
    """Of what a step gives; parts of planes have rows beside each other."""
    if step.action == "split":
        assert step.cut is not None
        return step.cut.size[0]
    return program.shapes[step.gives][1]
