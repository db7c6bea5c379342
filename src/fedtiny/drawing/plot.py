"""Plots: where data lies on a canvas, the numbers around it, and the names of what is drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from typing import Literal

from fedtiny.drawing.canvas import SMALL, Area, Boxes, Canvas, Dot, Line, Point, Text, text_width

STEPS = (1, 2, 2.5, 5, 10)
LINE_HEIGHT = 18
RIGHT = 16  # free at the right of a plot, for half a number
HEIGHT = 190
BELOW = 42  # for numbers and the title of an axis
SIDE_TITLE = 18  # for the title of an axis that goes up


def number_text(number: float) -> str:
    """A number on an axis, short.

    >>> number_text(0.25), number_text(12500), number_text(-2e6)
    ('0.25', '12.5k', '-2M')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{number:g}"


def ticks(low: float, high: float, count: int = 5, integers: bool = False) -> list[float]:
    """About so many round numbers between two.

    >>> ticks(0, 1), ticks(1, 16, integers=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [5.0, 10.0, 15.0])
    """
    if high <= low:
        return [low]
    rough = (high - low) / count
    power = 10 ** floor(log10(rough))
    step = next(power * step for step in STEPS if power * step >= rough * 0.999)
    step = max(1, round(step)) if integers else step
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten with twos and fives, or plain round numbers if fewer than two lie between.

    >>> log_ticks(0.004, 0.03), log_ticks(0.22, 0.38)
    ([0.005, 0.01, 0.02], [0.25, 0.3, 0.35])
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = (1, 2, 5) if high < 1e4 * low else (1,)
    every = [round(step * 10.0**power, 12) for power in powers for step in steps]
    found = [value for value in every if low <= value <= high]
    return found if len(found) > 1 else ticks(low, high, 4)


def padded(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Bounds with a little room around the values."""
    low, high = min(values), max(values)
    room = share * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


@dataclass(frozen=True)
class Axis:
    """What an axis spans and which numbers it shows; a logarithmic one takes positive ones only.

    It lies between the pixels `start` and `end`, as a plot places it.
    """

    low: float
    high: float
    numbers: Sequence[float] = ()
    title: str = ""
    log: bool = False
    text: Callable[[float], str] = number_text
    turned: bool = False
    """Read from below."""
    told: Callable[[float], str] | None = None
    """A number with its unit, as a tip tells it; default: the title and the number."""
    start: float = 0.0
    end: float = 0.0

    def at(self, value: float) -> float:
        """The pixel of a number."""
        span = (self.low, self.high, value)
        low, high, place = map(log10, span) if self.log else span
        share = (place - low) / (high - low) if high != low else 0.5
        return self.start + share * (self.end - self.start)

    def tell(self, value: float) -> str:
        """A number as a tip tells it.

        >>> Axis(0, 1, title="accuracy").tell(0.93214), Axis(1, 9, title="cost (log)").tell(3)
        ('accuracy 0.9321', 'cost 3')
        """
        if self.told:
            return self.told(value)
        return f"{self.title.partition(' (')[0]} {value:.4g}".strip()


def with_room(axis: Axis, width: float) -> Axis:
    """The axis over so many pixels, without numbers that would touch the one before.

    >>> with_room(Axis(1, 10, [1, 2, 5, 6, 10]), 100).numbers
    [1, 5, 10]
    """
    over, shown = replace(axis, start=0.0, end=width), list[float]()
    for number in axis.numbers:
        if shown:
            near = (text_width(axis.text(one), SMALL) for one in (shown[-1], number))
            if over.at(number) - over.at(shown[-1]) < sum(near) / 2 + 6:
                continue
        shown.append(number)
    return replace(axis, numbers=shown)


def linear(low: float, high: float, title: str, integers: bool = False) -> Axis:
    """An axis with round numbers; of whole ones a few more."""
    return Axis(low, high, ticks(low, high, 6 if integers else 5, integers), title)


class Plot:
    """A pair of axes, drawn on a canvas that grows to hold them; data is added through `at`."""

    def __init__(
        self,
        canvas: Canvas,
        x: Axis,
        y: Axis,
        top: float,
        *,
        left: float = 0.0,
        right: float | None = None,
        height: float = HEIGHT,
        grid: bool = True,
    ) -> None:
        bottom, below = top + height, float(BELOW)
        if x.turned:
            below = 34 + max(text_width(x.text(number), SMALL) for number in x.numbers)
        canvas.height = max(canvas.height, bottom + below)
        aside = SIDE_TITLE if y.title else 0
        numbers = max(text_width(y.text(number), SMALL) for number in y.numbers)
        end = (canvas.width if right is None else right) - RIGHT
        self.canvas = canvas
        self.x = replace(x, start=left + aside + 12 + numbers, end=end)
        self.y = replace(y, start=bottom, end=top + 4)
        self._draw_y(grid)
        self._draw_x(bottom, bottom + below - 7)
        if y.title:
            canvas.add(Text(left + 12, (top + bottom) / 2, y.title, "middle", SMALL, turned=True))

    def at(self, x: float, y: float) -> Point:
        """Where a point lies."""
        return self.x.at(x), self.y.at(y)

    def level(self, y: float, color: str, width: float = 1.0, dashed: bool = False) -> None:
        """A line across the plot."""
        at = self.y.at(y)
        self.canvas.add(Line(((self.x.start, at), (self.x.end, at)), color, width, dashed))

    def bar(
        self, x: float, width: float, low: float, high: float, color: str, tip: str = ""
    ) -> None:
        """A bar from one value to another, its middle and its width in pixels."""
        top, bottom = sorted((self.y.at(low), self.y.at(high)))
        box = (x - width / 2, top, width, bottom - top)
        self.canvas.add(Boxes((box,), color))
        if tip:
            self.canvas.add(Area(*box, tip))

    def _draw_y(self, grid: bool) -> None:
        for number in self.y.numbers:
            if grid:
                self.level(number, "grid")
            at = self.y.at(number) + 4
            self.canvas.add(Text(self.x.start - 7, at, self.y.text(number), "end", SMALL))

    def _draw_x(self, bottom: float, title: float) -> None:
        """Numbers below the plot, and what they are."""
        x = self.x
        self.canvas.add(Line(((x.start, bottom), (x.end, bottom)), "muted", 1))
        for number in x.numbers:
            at = x.at(number)
            self.canvas.add(
                Line(((at, bottom), (at, bottom + 4)), "muted", 1),
                Text(at + 4, bottom + 8, x.text(number), "end", SMALL, turned=True)
                if x.turned
                else Text(at, bottom + 17, x.text(number), "middle", SMALL),
            )
        self.canvas.add(Text((x.start + x.end) / 2, title, x.title, "middle", SMALL))


Mark = Literal[
    "line", "dashed line", "box", "dot", "line, dot", "hollow dot", "dashed line, hollow dot"
]


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    name: str
    color: str
    mark: Mark = "line"
    form: str = "circle"
    opacity: float = 1.0


def legend(canvas: Canvas, keys: Sequence[Key], top: float = 0.0) -> float:
    """Names with their marks, in as many rows as they need; returns where the legend ends."""
    left = 4.0
    x, y = left, top + 14.0
    for key in keys:
        width = 24 + text_width(key.name) + 14
        if x + width > canvas.width + 14 and x > left:
            x, y = left, y + LINE_HEIGHT
        _draw_mark(canvas, key, x, y - 4)
        canvas.add(Text(x + 23, y, key.name, color="ink"))
        x += width
    return y + 12


def _draw_mark(canvas: Canvas, key: Key, x: float, y: float) -> None:
    if key.mark == "box":
        canvas.add(Boxes(((x + 2, y - 6, 12, 12),), key.color))
        return
    if "line" in key.mark:
        ends = ((x, y), (x + 16, y))
        canvas.add(Line(ends, key.color, 3, "dashed" in key.mark, key.opacity))
    if "dot" in key.mark:
        canvas.add(Dot(x + 8, y, 4, key.color, "hollow" in key.mark, "", key.form, key.opacity))
