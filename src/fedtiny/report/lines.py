"""Lines over rounds, and points over densities."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtiny.report.axes import RIGHT, Scale, draw_x, draw_y, legend, number_room, padded, ticks
from fedtiny.report.canvas import SMALL, Canvas, Dot, Line, Point, text_width

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
    bounds: tuple[float, float],
) -> Canvas:
    """Values by round; rounds count from 1."""
    canvas = Canvas()
    dashed = [one.name for one in series if one.dashed]
    top = legend(canvas, [(one.name, one.colour) for one in series], dashed)
    xs = [x for one in series for x, _ in one.points]
    y, left = _y(canvas, top, bounds)
    x = Scale(min(xs), max(max(xs), min(xs) + 1), left, canvas.width - RIGHT)
    draw_x(canvas, x, y.start, ticks(x.low, x.high, 6, whole=True), "round")
    _draw(canvas, series, x, y)
    return canvas


def over_densities(series: Sequence[Series], level: float | None = None) -> Canvas:
    """Accuracy over density on a logarithmic axis; `level` is that of the dense model."""
    canvas, levels = Canvas(), [] if level is None else [level]
    entries = [(one.name, one.colour) for one in series]
    top = legend(canvas, [*entries, *(("dense", "ink") for _ in levels)], dashed=("dense",))
    low, high = padded([*levels, *(y for one in series for _, y in (*one.points, *one.dots))])
    y, left = _y(canvas, top, (max(0.0, low), min(1.0, high)))
    densities = sorted({x for one in series for x, _ in one.points})
    x = Scale(densities[0] / 1.2, densities[-1] * 1.2, left, canvas.width - RIGHT, log=True)
    for height in map(y.at, levels):
        canvas.add(Line(((x.start, height), (x.end, height)), "ink", 1.5, dashed=True))
    draw_x(canvas, x, y.start, _apart(densities, x), "density (share of prunable weights kept)")
    _draw(canvas, series, x, y)
    return canvas


def _apart(numbers: Sequence[float], x: Scale) -> list[float]:
    """Those that can stand side by side on the axis."""
    kept: list[float] = []
    for number in numbers:
        if not kept or x.at(number) - x.at(kept[-1]) >= text_width(f"{number:g}", SMALL) + 6:
            kept.append(number)
    return kept


def _y(canvas: Canvas, top: float, bounds: tuple[float, float]) -> tuple[Scale, float]:
    """The scale upwards and where the plot begins, its numbers being drawn at the left of that."""
    canvas.height = top + PLOT + BELOW
    y = Scale(*bounds, top + PLOT, top + 4)
    numbers = ticks(*bounds)
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
