"""Tables of numbers as shades of one colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log10

from fedtiny.report.canvas import SMALL, Canvas, Cells, Words, shortened, text_width

Values = Sequence[Sequence[float | None]]

LEVELS = 12
FAINT = 0.09
TALL, LOW = 20.0, 5.0  # pixels of a row
MAX_HEIGHT = 520
MAX_BELOW = 84  # pixels of a name below a column
LEAST_WIDTH = 2.5  # of a cell, so that one among hundreds is seen
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
    colour: str = "accent"
    first: int = 0
    """The number of the first column, so that round numbers are named."""


def heat(shown: Map) -> Canvas:
    """The map, with a scale of its shades above."""
    canvas, label = Canvas(), min(112.0, 8 + max(text_width(row, SMALL) for row in shown.rows))
    ends = 6 + max((text_width(end, SMALL) for end in (*shown.ends, shown.end_title)), default=0)
    ends = ends if shown.ends else 6
    height = max(LOW, min(TALL, MAX_HEIGHT / len(shown.rows)))
    top, width = 44.0, (canvas.width - label - ends) / max(1, len(shown.columns))
    canvas.height = top + height * len(shown.rows) + _below(shown, width)
    _scale(canvas, shown, label, canvas.width - ends)
    _cells(canvas, shown, label, top, width, height)
    _row_labels(canvas, shown, label, top, height)
    _column_labels(canvas, shown, label, top + height * len(shown.rows), width)
    return canvas


def shade(value: float, low: float, high: float, log: bool) -> float:
    """Between faint and full, in steps."""
    if log:
        value, low, high = log10(value), log10(low), log10(high)
    share = (value - low) / (high - low) if high > low else 1.0
    return FAINT + (1 - FAINT) * round(share * (LEVELS - 1)) / (LEVELS - 1)


def _range(shown: Map) -> tuple[float, float]:
    """From zero, or from the least on a logarithmic scale."""
    found = [value for row in shown.values for value in row if value and isfinite(value)]
    return (min(found, default=1) if shown.log else 0.0), max(found, default=1.0)


def _cells(
    canvas: Canvas, shown: Map, left: float, top: float, width: float, height: float
) -> None:
    low, high = _range(shown)
    by_shade: dict[float, list[tuple[float, float, float, float]]] = {}
    gap = 1.0 if width > 4 and height > 4 else 0.0
    for number, row in enumerate(shown.values):
        stretches = _stretches(row, gap > 0)
        limits = [*(start for start, _, _ in stretches), len(row)][1:]
        for (start, end, value), limit in zip(stretches, limits, strict=False):
            box = (left + start * width, top + number * height)
            least = min(LEAST_WIDTH, (limit - start) * width - gap)
            size = (max(least, (end - start) * width - gap), height - gap)
            by_shade.setdefault(shade(value, low, high, shown.log), []).append((*box, *size))
    canvas.add(*(Cells(tuple(boxes), shown.colour, s) for s, boxes in sorted(by_shade.items())))
    if shown.numbers and width >= NUMBER_ROOM and height >= 14:
        _numbers(canvas, shown, left, top, width, height)


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


def _numbers(
    canvas: Canvas, shown: Map, left: float, top: float, width: float, height: float
) -> None:
    low, high = _range(shown)
    for number, row in enumerate(shown.values):
        for place, value in enumerate(row):
            if value:
                dark = shade(value, low, high, shown.log) > SHADE_FOR_WHITE
                x, y = left + (place + 0.5) * width, top + (number + 0.5) * height + 4
                text = shown.form.format(value)
                colour = "paper" if dark else "ink"
                canvas.add(Words(x - 0.5, y, text, "middle", 10.5, colour))


def _scale(canvas: Canvas, shown: Map, left: float, right: float) -> None:
    """Shades from the least to the most."""
    low, high = _range(shown)
    step = 8.0
    start = left + text_width(shown.form.format(low), SMALL) + 6
    canvas.add(Words(left, 14, shown.form.format(low), "start", SMALL))
    for level in range(LEVELS):
        opacity = FAINT + (1 - FAINT) * level / (LEVELS - 1)
        canvas.add(Cells(((start + level * step, 5, step, 10),), shown.colour, opacity))
    canvas.add(Words(start + LEVELS * step + 6, 14, shown.form.format(high), "start", SMALL))
    if shown.ends:
        canvas.add(Words(canvas.width, 36, shown.end_title, "end", SMALL, "ink", bold=True))


def _row_labels(canvas: Canvas, shown: Map, left: float, top: float, height: float) -> None:
    every = 1 if height >= 11 else -(-11 // max(1, int(height)))
    for number, name in enumerate(shown.rows):
        if number % every:
            continue
        y = top + (number + 0.5) * height + 4
        canvas.add(Words(left - 6, y, shortened(name, left - 8), "end", SMALL))
        if shown.ends:
            canvas.add(Words(canvas.width, y, shown.ends[number], "end", SMALL, "ink"))


def _column_labels(canvas: Canvas, shown: Map, left: float, bottom: float, width: float) -> None:
    """Names below the columns, turned where they are long; as many as there is room for."""
    turned = _turned(shown, width)
    longest = max(text_width(name, SMALL) for name in shown.columns)
    every = _step((SMALL + 2 if turned else longest + 8) / width)
    for number in range((every - shown.first) % every, len(shown.columns), every):
        x, name = left + (number + 0.5) * width, shown.columns[number]
        if turned:
            name = shortened(name, MAX_BELOW)
            canvas.add(Words(x + 4, bottom + 6, name, "end", SMALL, turned=True))
        else:
            canvas.add(Words(x, bottom + 14, name, "middle", SMALL))
    middle = left + width * len(shown.columns) / 2
    canvas.add(Words(middle, bottom + _below(shown, width) - 9, shown.title, "middle", SMALL))


def _turned(shown: Map, width: float) -> bool:
    longest = max(text_width(name, SMALL) for name in shown.columns)
    return not all(name.isdigit() for name in shown.columns) and longest + 4 > width


def _below(shown: Map, width: float) -> float:
    """Room for the names and for what they are."""
    if not _turned(shown, width):
        return 42.0
    return 34 + min(MAX_BELOW, max(text_width(name, SMALL) for name in shown.columns))


def _step(least: float) -> int:
    """A round number of columns from one name to the next.

    >>> _step(0.8), _step(7), _step(12)
    (1, 10, 20)
    """
    steps = (round(step * 10.0**power) for power in range(6) for step in (1, 2, 5))
    return next(step for step in steps if step >= least)
