"""The first steps of a program by bands of rows: which rows each computes, and which are held.

A band is a few rows of the image and all that the steps make of them. What a step reads of earlier
bands is still held, so no row is computed twice.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtiny.export.c_steps import PIXEL_BY_PIXEL, Program, Step

OF_WHOLE_PLANES = ("group_norm", "layer_norm", "softmax", "multiply_planes")
BANDED = (
    *("convolve", "convolve_groups", "convolve_planes", "split", "max_pool"),
    *(action for action in PIXEL_BY_PIXEL if action not in OF_WHOLE_PLANES),
)
"""What makes a row of a few rows."""
NEVER = 1 << 30
Counts = NDArray[np.int64]
"""A number of rows after each band, and before the first."""


class Reach(NamedTuple):
    """Which rows a row is made of: `span`, from `stride` times its number less `padding` on."""

    span: int
    stride: int
    padding: int

    def end(self, rows: int) -> int:
        """Behind the last row that is read for the first `rows`."""
        return (rows - 1) * self.stride - self.padding + self.span

    def written(self, rows: Counts) -> Counts:
        """How many rows are made of the first `rows`."""
        found: Counts = np.maximum(0, (rows + self.padding - self.span) // self.stride + 1)
        found[0] = 0
        return found


def reach(step: Step, place: int) -> Reach:
    """Of a step into one of the values that it reads."""
    node = step.node
    if place or step.action in PIXEL_BY_PIXEL:
        return Reach(1, 1, 0)
    if step.cut is None or step.scratch is not None:
        return Reach(node.span[0], node.stride[0], node.padding[0])
    down, margin = step.cut.stride[0], step.cut.margin[0]
    if step.action == "split":
        return Reach(down, down, margin)
    return Reach((node.span[0] - 1 - node.padding[0] + margin) // down + 1, 1, 0)


class Band(NamedTuple):
    """What a step does in a band, as C reads it; rows count from the first that is held."""

    rows: int
    written: int
    read: int
    rows_read: int
    above: int
    added: int
    dropped: int
    zeros: int


class Window(NamedTuple):
    """The rows that are held of values in one place: how many, and by band the first."""

    rows: int
    first: Counts
    ends: Counts
    """Behind the last, with the rows of padding below."""

    @property
    def moved(self) -> int:
        """Rows that move up when others are dropped, of all bands together."""
        dropped = np.diff(self.first)
        return int((self.rows - dropped[dropped > 0]).sum())


class Schedule:
    """How many rows each step has given after each band of `height` rows of the image.

    Rows of padding below a value count, so that its last rows come as slowly as the others.
    """

    def __init__(self, program: Program, steps: int, height: int) -> None:
        self.program, self.height = program, height
        self.steps = program.steps[1 : 1 + steps]
        self.image = program.steps[0].gives
        complete = program.shapes[self.image][1]
        self.rows = {self.image: complete, **{s.gives: _rows(s, program) for s in self.steps}}
        self.count = -(-self._wanted()[self.image] // height)
        self.written: dict[int, Counts] = {self.image: height * np.arange(self.count + 1)}
        for step in self.steps:
            made = [reach(step, i).written(self.written[v]) for i, v in enumerate(step.reads)]
            self.written[step.gives] = np.min(made, axis=0)

    def _wanted(self) -> dict[int, int]:
        """How many rows of each value give all rows of the others."""
        found = dict(self.rows)
        for step in reversed(self.steps):
            for place, value in enumerate(step.reads):
                end = reach(step, place).end(found[step.gives])
                found[value] = max(found[value], end)
        return found

    @cached_property
    def readers(self) -> dict[int, list[tuple[int, Reach]]]:
        """By value, what steps of bands give that read it."""
        found: dict[int, list[tuple[int, Reach]]] = {value: [] for value in self.rows}
        for step in self.steps:
            for place, value in enumerate(step.reads):
                found[value].append((step.gives, reach(step, place)))
        return found

    @cached_property
    def complete(self) -> set[int]:
        """Values that are held with all rows: the image, and what is read behind the bands."""
        behind = self.program.steps[1 + len(self.steps) :]
        return {self.image, self.program.steps[-1].gives, *(v for s in behind for v in s.reads)}

    def ends(self, value: int) -> Counts:
        """How many rows of a value there are, without padding."""
        found: Counts = np.minimum(self.rows[value], self.written[value])
        return found

    def needed(self, value: int) -> Counts:
        """The first row that is read after each band."""
        found: Counts = np.full(self.count + 1, NEVER)
        for reader, (_, stride, padding) in self.readers[value]:
            written = self.written[reader]
            first = np.where(written < self.rows[reader], written * stride - padding, NEVER)
            found = np.minimum(found, first)
        return found

    def may_replace(self, step: Step, value: int) -> bool:
        """Whether nothing that a step writes over is read in a later band."""
        return bool((np.maximum(0, self.needed(value)) >= self.ends(step.gives)).all())

    def padding(self, value: int) -> int:
        """Rows of zeros that are read below a value."""
        ends = (reach.end(self.rows[reader]) for reader, reach in self.readers[value])
        return max(0, max(ends, default=0) - self.rows[value])

    def margin(self, value: int) -> int:
        """Rows of zeros that are read above or below it."""
        return max(self.padding(value), *(reach.padding for _, reach in self.readers[value]), 0)

    def window(self, values: Collection[int]) -> Window:
        """What is held of values that take each other's place."""
        last = max(self.rows[value] + self.padding(value) for value in values)
        written = np.minimum(last, [self.written[value] for value in values])
        starts = np.minimum(written, [self.needed(value) for value in values]).min(axis=0)
        ends = written.max(axis=0)
        most = int((ends[1:] - starts[:-1]).max())
        first = np.maximum(starts[0], np.maximum.accumulate(ends) - most)
        first[0] = starts[0]
        return Window(most, first, ends)

    def given_by_band(self, step: Step) -> list[int]:
        """How many rows a step gives in each band."""
        found: list[int] = np.diff(self.ends(step.gives)).tolist()
        return found

    def scratch_rows(self, step: Step) -> int:
        """Of the parts of a plane that a step cuts for itself."""
        assert step.cut is not None
        rows = max(self.given_by_band(step)) + (step.node.span[0] - 1) // step.cut.stride[0]
        return rows * prod(step.cut.stride)

    def bands(self, step: Step, windows: Mapping[int, Window], leads: bool) -> Iterator[Band]:
        """What a step does; the first step of a window `leads`: it drops rows, and pads them."""
        value, rows = step.gives, self.rows[step.gives]
        own = windows.get(value)
        for band, (start, end) in enumerate(pairwise(self.ends(value).tolist()), 1):
            read, rows_read, above = self._read(step, start, end)
            held = [int(windows[v].first[band]) if v in windows else 0 for v in step.reads]
            written, dropped, zeros = start, 0, 0
            if own is not None:
                written = int(self.written[value][band - 1] - own.first[band])
            if own is not None and leads:
                dropped = int(own.first[band] - own.first[band - 1])
                zeros = int(max(rows, own.ends[band]) - max(rows, own.ends[band - 1]))
            yield Band(
                *(end - start, written, read - held[0], rows_read, above),
                *(start - held[-1], dropped, zeros),
            )

    def _read(self, step: Step, start: int, end: int) -> tuple[int, int, int]:
        """From which row on, how many, and how many a first window has above them."""
        touched = reach(step, 0)
        first, last = start * touched.stride - touched.padding, touched.end(end)
        if step.action == "max_pool":
            inside = max(first, 0)
            return inside, min(last, self.rows[step.reads[0]]) - inside, inside - first
        if step.convolves and step.scratch is None:
            return start, last - first, 0  # its taps count from there
        return first, last - first, 0


def _rows(step: Step, program: Program) -> int:
    """Of what a step gives; parts of planes have rows beside each other."""
    if step.action == "split" and step.cut is not None:
        return step.cut.size[0]
    return program.shapes[step.gives][1]
