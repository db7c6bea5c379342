"""The selection pool: the loss of every candidate, and what the layers of the winner keep."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from fedtiny.report.axes import RIGHT, Scale, draw_x, draw_y, legend, number_room, padded, ticks
from fedtiny.report.canvas import SMALL, Canvas, Dot, Line, Words, shortened, text_width

ROW = 20.0


@dataclass(frozen=True)
class Candidate:
    """A candidate by its place in the pool, from 0."""

    number: int
    loss: float


def losses(candidates: Sequence[Candidate], chosen: int) -> Canvas:
    """Candidates from the best to the worst; the chosen one is marked."""
    canvas = Canvas(height=288)
    ordered = sorted(candidates, key=lambda candidate: candidate.loss)
    low, high = padded([candidate.loss for candidate in ordered], 0.12)
    y = Scale(low, high, 246, 36)
    numbers = ticks(low, high)
    left = number_room(numbers)
    x = Scale(0.4, len(ordered) + 0.6, left, canvas.width - RIGHT)
    winner = next((one for one in ordered if one.number == chosen), ordered[0])
    legend(
        canvas,
        [
            (f"chosen: candidate {winner.number + 1}, loss {winner.loss:.4g}", "second"),
            ("others", "dense"),
        ],
    )
    draw_y(canvas, y, left, canvas.width - RIGHT, numbers)
    draw_x(canvas, x, y.start, ticks(1, len(ordered), 6, whole=True), "candidates, best first")
    radius = max(2.0, min(5.0, 120 / len(ordered)))
    for place, candidate in enumerate(ordered, start=1):
        _candidate(canvas, candidate, x.at(place), y, radius, candidate.number == chosen)
    return canvas


def _candidate(
    canvas: Canvas, candidate: Candidate, x: float, y: Scale, radius: float, won: bool
) -> None:
    at, tip = y.at(candidate.loss), f"candidate {candidate.number + 1}: loss {candidate.loss:.4f}"
    if not won:
        canvas.add(Dot(x, at, radius, "dense", tip=tip))
        return
    canvas.add(Dot(x, at, radius + 4, "second", hollow=True), Dot(x, at, radius, "second", tip=tip))


def layers(names: Sequence[str], densities: Sequence[Sequence[float]], chosen: int) -> Canvas:
    """By layer: from the least to the most dense of all candidates, and the chosen one."""
    canvas, top = Canvas(), 26.0
    left = min(112.0, 8 + max(text_width(name, SMALL) for name in names))
    row = max(9.0, min(ROW, 520 / len(names)))
    bottom = top + row * len(names)
    canvas.height = bottom + 42
    columns = list(zip(*densities, strict=True))
    values = [value for column in columns for value in column if value > 0]
    low, high = min(values) / 1.15, max(values) * 1.15
    x = Scale(low, high, left, canvas.width - 12, log=True)
    numbers = _log_ticks(low, high)
    for number in numbers:
        canvas.add(Line(((x.at(number), top - 4), (x.at(number), bottom)), "grid", 1))
    draw_x(canvas, x, bottom, numbers, "density of the layer (logarithmic)")
    _key(canvas, left)
    for number, (name, column) in enumerate(zip(names, columns, strict=True)):
        at = top + (number + 0.5) * row
        present = [value for value in column if value > 0] or [low]
        canvas.add(
            Line(((x.at(min(present)), at), (x.at(max(present)), at)), "dense", 4),
            Dot(
                x.at(max(column[chosen], low)),
                at,
                min(4.5, row / 2.6),
                "second",
                tip=f"{name}: {column[chosen]:.4f}",
            ),
        )
        if row >= 11 or number % 2 == 0:
            canvas.add(Words(left - 6, at + 4, shortened(name, left - 8), "end", SMALL))
    return canvas


def _key(canvas: Canvas, left: float) -> None:
    canvas.add(
        Line(((left, 10), (left + 18, 10)), "dense", 4),
        Words(left + 24, 14, "all candidates", size=SMALL, colour="ink"),
        Dot(left + 126, 10, 4.5, "second"),
        Words(left + 135, 14, "chosen", size=SMALL, colour="ink"),
    )


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten with twos and fives, or plain round numbers where fewer than two lie between.

    >>> _log_ticks(0.004, 0.03), _log_ticks(0.22, 0.38)
    ([0.005, 0.01, 0.02], [0.25, 0.3, 0.35])
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    every = [round(step * 10.0**power, 12) for power in powers for step in (1, 2, 5)]
    found = [value for value in every if low <= value <= high]
    return found if len(found) > 1 else ticks(low, high, 4)
