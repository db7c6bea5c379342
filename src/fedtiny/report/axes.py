"""Where data lies on a canvas, and the ticks around it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from fedtiny.report.canvas import SMALL, TEXT, Canvas, Line, Words, text_width

STEPS = (1, 2, 2.5, 5, 10)
LINE_HEIGHT = 18
RIGHT = 16  # free at the right of a plot, for half a number


@dataclass(frozen=True)
class Scale:
    """Numbers on one axis; a logarithmic one takes positive numbers only."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a number."""
        low, high, value = (
            (log10(self.low), log10(self.high), log10(value))
            if self.log
            else (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """About so many round numbers between two.

    >>> ticks(0, 1), ticks(1, 16, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [5.0, 10.0, 15.0])
    """
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10 ** floor(log10(rough))
    step = next(power * step for step in STEPS if power * step >= rough * 0.999)
    step = max(1, round(step)) if whole else step
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def told(number: float) -> str:
    """A number on an axis, short.

    >>> told(0.25), told(12500), told(-2e6)
    ('0.25', '12.5k', '-2M')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{number:g}"


def number_room(numbers: Sequence[float]) -> float:
    """Where a plot begins that has these numbers at its left."""
    return 12 + max(text_width(told(number), SMALL) for number in numbers)


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Bounds with a little room around the values."""
    low, high = min(values), max(values)
    room = share * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def draw_y(
    canvas: Canvas,
    y: Scale,
    left: float,
    right: float,
    numbers: Sequence[float],
    mirrored: bool = False,
) -> None:
    """Grid lines with their numbers at the left; a mirrored scale counts downwards as well."""
    for number in numbers:
        at = y.at(number)
        canvas.add(
            Line(((left, at), (right, at)), "grid", 1),
            Words(left - 7, at + 4, told(abs(number) if mirrored else number), "end", SMALL),
        )


def draw_x(canvas: Canvas, x: Scale, bottom: float, numbers: Sequence[float], title: str) -> None:
    """Numbers below the plot, and what they are."""
    canvas.add(Line(((x.start, bottom), (x.end, bottom)), "muted", 1))
    for number in numbers:
        at = x.at(number)
        canvas.add(
            Line(((at, bottom), (at, bottom + 4)), "muted", 1),
            Words(at, bottom + 17, told(number), "middle", SMALL),
        )
    canvas.add(Words((x.start + x.end) / 2, bottom + 35, title, "middle", SMALL))


def legend(canvas: Canvas, entries: Sequence[tuple[str, str]], dashed: Sequence[str] = ()) -> float:
    """Names with a line of their colour, in as many rows as they need; gives the height."""
    left = 4.0
    x, y = left, 14.0
    for name, colour in entries:
        width = 24 + text_width(name) + 14
        if x + width > canvas.width + 14 and x > left:
            x, y = left, y + LINE_HEIGHT
        canvas.add(Line(((x, y - 4), (x + 16, y - 4)), colour, 3, name in dashed))
        canvas.add(Words(x + 23, y, name, size=TEXT, colour="ink"))
        x += width
    return y + 12
