"""Tables of numbers as shades of one color."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log10

from fedtiny.drawing.canvas import SMALL, Anchor, Boxes, Canvas, Text, shortened, text_width

Values = Sequence[Sequence[float | None]]

LEVELS = 12
FAINT = 0.09
TALL, LOW = 20.0, 5.0  # pixels of a row
MAX_HEIGHT = 520
MAX_BELOW = 84  # pixels of a name below a column
MIN_WIDTH = 2.5  # of a cell, so that one among hundreds is seen
NUMBER_ROOM = 22  # pixels of a cell that can hold a number
SHADE_FOR_WHITE = 0.55


@dataclass(frozen=True)
class Map:
    """What is shown: a row of numbers for each label; None and 0 are left blank."""

    rows: Sequence[str]
    values: Values
    columns: Sequence[str]
    title: str
    """What the columns are."""
    ends: Sequence[str] = ()
    """A text behind each row."""
    end_title: str = ""
    form: str = "{:g}"
    log: bool = False
    numbers: bool = False
    """Write numbers into cells that are large enough."""
    color: str = "accent"
    first: int = 0
    """The number of the first column, so that round numbers are named."""


def heat(shown: Map) -> Canvas:
    """The map, with a scale of its shades above."""
    drawing = _Drawing(shown)
    drawing.draw_scale()
    drawing.draw_cells()
    drawing.draw_row_names()
    drawing.draw_column_names()
    return drawing.canvas


def shade(value: float, low: float, high: float, log: bool) -> float:
    """Between faint and full, in steps."""
    if log:
        value, low, high = log10(value), log10(low), log10(high)
    share = (value - low) / (high - low) if high > low else 1.0
    return FAINT + (1 - FAINT) * round(share * (LEVELS - 1)) / (LEVELS - 1)


class _Drawing:
    """Where the cells of a map lie, and everything around them."""

    def __init__(self, shown: Map) -> None:
        self.shown, self.canvas, self.top = shown, Canvas(), 44.0
        found = [value for row in shown.values for value in row if value and isfinite(value)]
        self.low = min(found, default=1.0) if shown.log else 0.0
        self.high = max(found, default=1.0)
        self.left = min(112.0, 8 + max(text_width(row, SMALL) for row in shown.rows))
        ends = (text_width(end, SMALL) for end in (*shown.ends, shown.end_title))
        self.right = self.canvas.width - 6 - (max(ends) if shown.ends else 0)
        self.width = (self.right - self.left) / max(1, len(shown.columns))
        self.height = max(LOW, min(TALL, MAX_HEIGHT / len(shown.rows)))
        self.bottom = self.top + self.height * len(shown.rows)
        self.longest = max(text_width(name, SMALL) for name in shown.columns)
        numbers = all(name.isdigit() for name in shown.columns)
        self.turned = not numbers and self.longest + 4 > self.width
        below = 34 + min(MAX_BELOW, self.longest) if self.turned else 42.0
        self.canvas.height = self.bottom + below

    def shade(self, value: float) -> float:
        """How strong a number is shown."""
        return shade(value, self.low, self.high, self.shown.log)

    def words(self, x: float, y: float, text: str, anchor: Anchor, color: str = "muted") -> None:
        """A small text."""
        self.canvas.add(Text(x, y, text, anchor, SMALL, color))

    def draw_scale(self) -> None:
        """Shades from the least to the most."""
        low, high = (self.shown.form.format(value) for value in (self.low, self.high))
        start, step = self.left + text_width(low, SMALL) + 6, 8.0
        self.words(self.left, 14, low, "start")
        for level in range(LEVELS):
            box = (start + level * step, 5.0, step, 10.0)
            opacity = FAINT + (1 - FAINT) * level / (LEVELS - 1)
            self.canvas.add(Boxes((box,), self.shown.color, opacity))
        self.words(start + LEVELS * step + 6, 14, high, "start")
        if self.shown.ends:
            title, right = self.shown.end_title, self.canvas.width
            self.canvas.add(Text(right, 36, title, "end", SMALL, "ink", bold=True))

    def draw_cells(self) -> None:
        """Boxes of each shade together, with their numbers if there is room."""
        by_shade: dict[float, list[tuple[float, float, float, float]]] = {}
        gap = 1.0 if self.width > 4 and self.height > 4 else 0.0
        for number, row in enumerate(self.shown.values):
            y, stretches = self.top + number * self.height, _stretches(row, gap > 0)
            limits = [*(start for start, _, _ in stretches), len(row)][1:]
            for (start, end, value), limit in zip(stretches, limits, strict=False):
                least = min(MIN_WIDTH, (limit - start) * self.width - gap)
                width = max(least, (end - start) * self.width - gap)
                box = (self.left + start * self.width, y, width, self.height - gap)
                by_shade.setdefault(self.shade(value), []).append(box)
        color = self.shown.color
        self.canvas.add(*(Boxes(tuple(boxes), color, s) for s, boxes in sorted(by_shade.items())))
        if self.shown.numbers and self.width >= NUMBER_ROOM and self.height >= 14:
            self._draw_numbers()

    def _draw_numbers(self) -> None:
        for number, row in enumerate(self.shown.values):
            y = self.top + (number + 0.5) * self.height + 4
            for place, value in enumerate(row):
                if value:
                    x = self.left + (place + 0.5) * self.width - 0.5
                    color = "paper" if self.shade(value) > SHADE_FOR_WHITE else "ink"
                    text = self.shown.form.format(value)
                    self.canvas.add(Text(x, y, text, "middle", 10.5, color))

    def draw_row_names(self) -> None:
        """As many as there is room for, with the texts behind them."""
        every = 1 if self.height >= 11 else -(-11 // max(1, int(self.height)))
        for number in range(0, len(self.shown.rows), every):
            y = self.top + (number + 0.5) * self.height + 4
            name = shortened(self.shown.rows[number], self.left - 8)
            self.words(self.left - 6, y, name, "end")
            if self.shown.ends:
                self.words(self.canvas.width, y, self.shown.ends[number], "end", "ink")

    def draw_column_names(self) -> None:
        """Names below the columns, turned if they are long; as many as there is room for."""
        shown = self.shown
        every = _step((SMALL + 2 if self.turned else self.longest + 8) / self.width)
        for number in range((every - shown.first) % every, len(shown.columns), every):
            x, name = self.left + (number + 0.5) * self.width, shown.columns[number]
            if self.turned:
                name = shortened(name, MAX_BELOW)
                self.canvas.add(Text(x + 4, self.bottom + 6, name, "end", SMALL, turned=True))
            else:
                self.words(x, self.bottom + 14, name, "middle")
        middle = self.left + self.width * len(shown.columns) / 2
        self.words(middle, self.canvas.height - 9, shown.title, "middle")


def _stretches(row: Sequence[float | None], apart: bool) -> list[tuple[int, int, float]]:
    """Cells that are not blank: start, end and value; neighbours of one value join if not apart."""
    found: list[tuple[int, int, float]] = []
    for place, value in enumerate(row):
        if not value or not isfinite(value):
            continue
        if not apart and found and found[-1][1:] == (place, value):
            found[-1] = (found[-1][0], place + 1, value)
        else:
            found.append((place, place + 1, value))
    return found


def _step(least: float) -> int:
    """A round number of columns from one name to the next.

    >>> _step(0.8), _step(7), _step(12)
    (1, 10, 20)
    """
    steps = (round(step * 10.0**power) for power in range(6) for step in (1, 2, 5))
    return next(step for step in steps if step >= least)
