"""Tables of numbers as shades of one color."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from fedtiny.drawing.canvas import SMALL, Area, Boxes, Canvas, Text, shortened, text_width
from fedtiny.drawing.plot import RIGHT, SIDE_TITLE, Axis, Plot

Values = Sequence[Sequence[float | None]]

LEVELS = 12
FAINT = 0.09
TOP, WITHOUT_ENDS = 40.0, 26.0  # where cells begin: below the scale and the title of the ends
TALL, LOW = 20.0, 5.0  # pixels of a row
MAX_HEIGHT = 520
MAX_NAME, MAX_BELOW = 104, 84  # pixels of a name beside a row, and below a column
MIN_WIDTH = 2.5  # of a cell, so that one among hundreds is seen
NUMBER_ROOM = 22  # pixels of a cell that can hold a number
SHADE_FOR_WHITE = 0.7  # whose letters have the most contrast on light and on dark
MAX_TIPS = 400  # cells of a map that tell their values


@dataclass(frozen=True)
class Map:
    """What is shown: a row of numbers for each label; None and 0 are left blank."""

    rows: Sequence[str]
    values: Values
    columns: Sequence[str]
    title: str
    """What the columns are."""
    side: str
    """What the rows are."""
    unit: str
    """What the numbers are."""
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
    found = [value for row in shown.values for value in row if value and isfinite(value)]
    low, high = min(found, default=1.0) if shown.log else 0.0, max(found, default=1.0)
    shades = Axis(low, high, log=shown.log, end=LEVELS - 1)
    plot = _plot(shown, Canvas(height=0))
    _draw_scale(shown, plot, shades)
    _draw_cells(shown, plot, shades)
    plot.canvas.add(*_tips(shown, plot))
    if shown.ends:
        right = plot.canvas.width
        plot.canvas.add(Text(right, TOP - 4, shown.end_title, "end", SMALL, "ink", bold=True))
        for row in plot.y.numbers:
            end = shown.ends[round(row)]
            plot.canvas.add(Text(right, plot.y.at(row) + 4, end, "end", SMALL, "ink"))
    return plot.canvas


def _plot(shown: Map, canvas: Canvas) -> Plot:
    """The axes: as many names of rows and columns as there is room for, long ones turned."""
    rows, columns = [shortened(name, MAX_NAME) for name in shown.rows], shown.columns
    height = max(LOW, min(TALL, MAX_HEIGHT / len(rows)))
    beside = max(text_width(name, SMALL) for name in rows)
    ends = max(text_width(end, SMALL) for end in (*shown.ends, shown.end_title, ""))
    right = canvas.width - 6 - ends
    width = (right - beside - 12 - SIDE_TITLE) / len(columns)
    longest = max(text_width(name, SMALL) for name in columns)
    turned = longest + 4 > width and not all(name.isdigit() for name in columns)
    every = step((SMALL + 2 if turned else longest + 8) / width)
    x = Axis(
        -0.5,
        len(columns) - 0.5,
        range((every - shown.first) % every, len(columns), every),
        shown.title,
        text=lambda column: shortened(columns[round(column)], MAX_BELOW),
        turned=turned,
    )
    shown_rows = range(0, len(rows), 1 if height >= 11 else -(-11 // int(height)))
    y = Axis(len(rows) - 0.5, -0.5, shown_rows, shown.side, text=lambda row: rows[round(row)])
    top = TOP if shown.ends else WITHOUT_ENDS
    return Plot(canvas, x, y, top, right=right + RIGHT, height=height * len(rows), grid=False)


def _opacity(level: float) -> float:
    return FAINT + (1 - FAINT) * round(level) / (LEVELS - 1)


def _draw_scale(shown: Map, plot: Plot, shades: Axis) -> None:
    """Shades from the least to the most."""
    low, high = (shown.form.format(value) for value in (shades.low, shades.high))
    high, left, step = f"{high} {shown.unit}", plot.x.start, 8.0
    start = left + text_width(low, SMALL) + 6
    for level in range(LEVELS):
        box = (start + level * step, 5.0, step, 10.0)
        plot.canvas.add(Boxes((box,), shown.color, _opacity(level)))
    end = start + LEVELS * step + 6
    plot.canvas.add(Text(left, 14, low, size=SMALL), Text(end, 14, high, size=SMALL))


def _draw_cells(shown: Map, plot: Plot, shades: Axis) -> None:
    """Boxes of each shade together, with their numbers if there is room."""
    width = (plot.x.end - plot.x.start) / len(shown.columns)
    height = (plot.y.start - plot.y.end) / len(shown.rows)
    gap = 1.0 if width > 4 and height > 4 else 0.0
    numbers = shown.numbers and width >= NUMBER_ROOM and height >= 14
    by_shade: dict[float, list[tuple[float, float, float, float]]] = {}
    texts = []
    for number, row in enumerate(shown.values):
        stretches = _stretches(row, gap > 0)
        limits = [*(start for start, _, _ in stretches), len(row)][1:]
        for (start, end, value), limit in zip(stretches, limits, strict=False):
            least = min(MIN_WIDTH, (limit - start) * width - gap)
            x, y = plot.at(start - 0.5, number - 0.5)
            box = (x, y, max(least, (end - start) * width - gap), height - gap)
            shade = _opacity(shades.at(value))
            by_shade.setdefault(shade, []).append(box)
            if numbers:
                color = "paper" if shade > SHADE_FOR_WHITE else "ink"
                middle = (x + (width - gap) / 2, y + height / 2 + 4)
                texts.append(Text(*middle, shown.form.format(value), "middle", 10.5, color))
    boxes = (Boxes(tuple(boxes), shown.color, s) for s, boxes in sorted(by_shade.items()))
    plot.canvas.add(*boxes, *texts)


def _tips(shown: Map, plot: Plot) -> list[Area]:
    """What each cell holds, of a map that is small enough."""
    rows, columns = len(shown.rows), len(shown.columns)
    if rows * columns > MAX_TIPS:
        return []
    width, height = (plot.x.end - plot.x.start) / columns, (plot.y.start - plot.y.end) / rows
    return [
        Area(
            *plot.at(column - 0.5, row - 0.5),
            *(width, height),
            f"{shown.side} {shown.rows[row]}\n{shown.title} {shown.columns[column]}\n"
            f"{shown.form.format(value)} {shown.unit}",
        )
        for row, values in enumerate(shown.values)
        for column, value in enumerate(values)
        if value is not None and isfinite(value)
    ]


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


def step(least: float) -> int:
    """A round number of columns from one name to the next.

    >>> step(0.8), step(7), step(12)
    (1, 10, 20)
    """
    steps = (round(step * 10.0**power) for power in range(6) for step in (1, 2, 5))
    return next(step for step in steps if step >= least)
