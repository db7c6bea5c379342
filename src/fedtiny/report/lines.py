"""Lines over rounds, and points over densities."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtiny.report.axes import RIGHT, Scale, draw_x, draw_y, legend, number_room, padded, ticks
from fedtiny.report.canvas import Canvas, Dot, Line, Point

PLOT = 190
BELOW = 42
FEW = 40  # points that are still marked one by one


@dataclass(frozen=True)
class Series:
    """A named line through points."""

    name: str
    colour: str
    points: tuple[Point, ...]
    dashed: bool = False
    dots: tuple[Point, ...] = ()
    """Points beside the line: single runs around their mean."""


def over_rounds(
    series: Sequence[Series],
    *,
    bounds: tuple[float, float] | None = None,
    marks: Sequence[float] = (),
) -> Canvas:
    """Values by round; rounds count from 1. `marks` are rounds to point out."""
    canvas = Canvas()
    dashed = [one.name for one in series if one.dashed]
    top = legend(canvas, [(one.name, one.colour) for one in series], dashed)
    xs = [x for one in series for x, _ in one.points]
    y, left = _y(canvas, series, top, bounds)
    x = Scale(min(xs), max(max(xs), min(xs) + 1), left, canvas.width - RIGHT)
    for mark in marks:
        canvas.add(Line(((x.at(mark), top), (x.at(mark), y.start)), "grid", 1, dashed=True))
    draw_x(canvas, x, y.start, ticks(x.low, x.high, 6, whole=True), "round")
    _draw(canvas, series, x, y)
    return canvas


def over_densities(series: Sequence[Series], level: float | None = None) -> Canvas:
    """Accuracy over density on a logarithmic axis; `level` is that of the dense model."""
    canvas = Canvas()
    entries = [(one.name, one.colour) for one in series]
    entries += [("dense", "ink")] if level is not None else []
    top = legend(canvas, entries, dashed=("dense",))
    levels = () if level is None else (Series("", "muted", ((1.0, level),)),)
    y, left = _y(canvas, (*series, *levels), top, None)
    densities = sorted({x for one in series for x, _ in one.points})
    x = Scale(*(densities[0] / 1.2, densities[-1] * 1.2, left, canvas.width - RIGHT), log=True)
    if level is not None:
        at = y.at(level)
        canvas.add(Line(((x.start, at), (x.end, at)), "ink", 1.5, dashed=True))
    draw_x(canvas, x, y.start, densities, "density (share of prunable weights kept)")
    _draw(canvas, series, x, y)
    return canvas


def _y(
    canvas: Canvas,
    series: Sequence[Series],
    top: float,
    bounds: tuple[float, float] | None,
) -> tuple[Scale, float]:
    """The scale upwards and where the plot begins, its numbers being drawn at the left of that."""
    values = [y for one in series for _, y in (*one.points, *one.dots)]
    low, high = bounds or padded(values)
    canvas.height = top + PLOT + BELOW
    y = Scale(low, high, top + PLOT, top + 4)
    numbers = ticks(low, high)
    left = number_room(numbers)
    draw_y(canvas, y, left, canvas.width - RIGHT, numbers)
    return y, left


def _draw(canvas: Canvas, series: Sequence[Series], x: Scale, y: Scale) -> None:
    for one in series:
        points = tuple((x.at(a), y.at(b)) for a, b in one.points)
        canvas.add(Line(points, one.colour, 2.2, one.dashed))
        for a, b in one.dots:
            canvas.add(Dot(x.at(a), y.at(b), 2.5, one.colour, tip=f"{one.name}: {b:.4f}"))
        if len(points) <= FEW and not one.dashed:
            for (a, b), (px, py) in zip(one.points, points, strict=True):
                canvas.add(Dot(px, py, 3.2, one.colour, tip=f"{one.name} at {a:g}: {b:.4g}"))
