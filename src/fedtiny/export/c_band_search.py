"""Whether the first steps of a program are computed by bands of rows, how many, and how high."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product, takewhile

from fedtiny.export.c_bands import BANDED, Schedule
from fedtiny.export.c_buffers import Placing
from fedtiny.export.c_steps import Program, Step
from fedtiny.graph.arrays import Weights

MAX_EXTRA = 0.1
"""What bands may add to the work of an image."""
LEAST_SHARE, LEAST_VALUES = 0.05, 4096
"""What bands must save, of the arena: they take some flash. Where several save the same but for
this share, work decides."""
HEIGHTS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Rows of the image that a band may have."""


@dataclass(frozen=True)
class Costs:
    """Work in multiply-adds, as instructions of a Cortex-M4F suggest it."""

    wide: int
    middle: int
    narrow: int
    """Neighboring sums are worked out so many at a time."""
    listed: float
    """Of a kept weight before its sums, where others are pruned."""
    complete: float
    """The same where none is."""
    filter: float
    moved: float
    """Of a value that moves up when rows are dropped."""

    def sums(self, length: int) -> int:
        """How many are worked out where `length` are wanted.

        >>> FLOATS.sums(65), FLOATS.sums(50)
        (80, 64)
        """
        done = -(-max(0, length - self.middle) // self.wide) * self.wide
        width = self.middle if length - done > self.narrow else self.narrow
        return done + -(-max(0, length - done) // width) * width


FLOATS = Costs(64, 32, 16, listed=4, complete=4, filter=30, moved=0.3)


def schedule(
    program: Program, zeros: Mapping[int, int], weights: Mapping[str, Weights], costs: Costs
) -> Schedule | None:
    """The bands that lower the peak of memory the most, or nothing where none do."""
    held = Placing(program, zeros, None).held_at_a_time
    allowed = min((1 - LEAST_SHARE) * max(held), max(held) - LEAST_VALUES)
    last = max(number for number, values in enumerate(held) if values > allowed)
    search = _Search(program, zeros, weights, costs)
    found = [each for each in search.tried(max(1, last)) if each[0] <= allowed]
    if not found:
        return None
    least = min(peak for peak, _, _ in found)
    close = (each for each in found if each[0] <= (1 + LEAST_SHARE) * least)
    return min(close, key=lambda each: each[1])[2]


@dataclass(frozen=True)
class _Search:
    """What may be done with a program."""

    program: Program
    zeros: Mapping[int, int]
    weights: Mapping[str, Weights]
    costs: Costs

    def tried(self, least: int) -> Iterator[tuple[int, float, Schedule]]:
        """The peak of memory, the extra work and how, for at least so many steps."""
        steps = self.program.steps[1:]
        most = MAX_EXTRA * sum(self._work(step, [self._rows(step)]) for step in steps)
        count = len(list(takewhile(lambda step: step.action in BANDED, steps)))
        heights = [h for h in HEIGHTS if h < self._rows(self.program.steps[0])]
        for number, height in product(range(least, count + 1), heights):
            tried = Schedule(self.program, number, height)
            extra = self.repeated(tried)
            if extra <= most:
                placing = Placing(self.program, self.zeros, tried)
                extra += self.costs.moved * sum(buffer.moved for buffer in placing.buffers)
            if extra <= most:
                yield max(placing.held_at_a_time), extra, tried

    def repeated(self, schedule: Schedule) -> float:
        """What bands add where weights are listed again, and rows are fewer."""
        return sum(
            self._work(step, schedule.given_by_band(step)) - self._work(step, [self._rows(step)])
            for step in schedule.steps
        )

    def _rows(self, step: Step) -> int:
        return self.program.shapes[step.gives][1]

    def _work(self, step: Step, bands: list[int]) -> float:
        """Of a layer, some rows at a time."""
        if not step.convolves and step.action != "connect":
            return 0
        held, (_, _, columns) = self.weights[step.node.name], self.program.shapes[step.gives]
        pitch = columns + max(0, step.node.padding[1] if step.cut is None else 0)
        listed = self.costs.listed if held.values.size < held.size else self.costs.complete
        return sum(
            held.values.size * (self.costs.sums((rows - 1) * pitch + columns) + listed)
            + held.shape[0] * self.costs.filter
            for rows in bands
            if rows
        )
