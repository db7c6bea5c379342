"""Bars: costs beside those of a dense run, and what adjustments grew and dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtiny.report.axes import RIGHT, Scale, draw_x, draw_y, legend, number_room, ticks
from fedtiny.report.canvas import SMALL, Box, Canvas, Line, Words, text_width

ROW, BAR = 66.0, 15.0


@dataclass(frozen=True)
class Pair:
    """A cost of this run beside the same of a dense run, with both as text."""

    name: str
    ours: float
    dense: float
    ours_text: str
    dense_text: str


def pairs(shown: Sequence[Pair]) -> Canvas:
    """Two bars for each cost, on a scale of its own that starts at zero."""
    canvas = Canvas()
    top = legend(canvas, [("this run", "accent"), ("dense", "dense")])
    canvas.height = top + ROW * len(shown)
    for number, pair in enumerate(shown):
        _pair(canvas, pair, top + number * ROW)
    return canvas


def share(ours: float, dense: float) -> str:
    """A cost as a share of another.

    >>> share(1, 80), share(3, 2)
    ('1.25%', '150%')
    """
    return f"{100 * ours / dense:.3g}%"


def _pair(canvas: Canvas, pair: Pair, top: float) -> None:
    room = canvas.width - 8 - text_width("999 GFLOPs", SMALL) - 8
    per_unit = room / max(pair.ours, pair.dense)
    canvas.add(Words(4, top + 16, pair.name, colour="ink", bold=True))
    told = f"{share(pair.ours, pair.dense)} of dense"
    canvas.add(Words(canvas.width - 4, top + 16, told, "end", colour="ink"))
    both = ((pair.ours, pair.ours_text, "accent"), (pair.dense, pair.dense_text, "dense"))
    for number, (value, text, colour) in enumerate(both):
        y, width = top + 23 + number * (BAR + 3), max(1.5, value * per_unit)
        canvas.add(Box(4, y, width, BAR, colour))
        canvas.add(Words(4 + width + 6, y + 12, text, size=SMALL))


def grown_and_dropped(grown: dict[int, int], dropped: dict[int, int], rounds: int) -> Canvas:
    """By round: grown weights above the line, dropped ones below."""
    canvas = Canvas()
    top = legend(canvas, [("grown", "good"), ("dropped", "bad")])
    most = max([*grown.values(), *dropped.values(), 1])
    least = max([*dropped.values(), 0])
    canvas.height = top + 190 + 42
    y = Scale(-1.08 * least, 1.08 * most, top + 190, top + 4)
    numbers = ticks(y.low, y.high, 5)
    left = number_room([abs(number) for number in numbers])
    x = Scale(0.5, rounds + 0.5, left, canvas.width - RIGHT)
    draw_y(canvas, y, left, canvas.width - RIGHT, numbers, mirrored=True)
    width = max(1.5, 0.7 * (x.end - x.start) / rounds)
    for round, count in grown.items():
        canvas.add(Box(x.at(round) - width / 2, y.at(count), width, y.at(0) - y.at(count), "good"))
    for round, count in dropped.items():
        canvas.add(Box(x.at(round) - width / 2, y.at(0), width, y.at(-count) - y.at(0), "bad"))
    canvas.add(Line(((x.start, y.at(0)), (x.end, y.at(0))), "muted", 1))
    draw_x(canvas, x, y.start, ticks(1, rounds, 6, whole=True), "round")
    return canvas
