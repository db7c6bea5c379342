"""Lines through data, and what they tell when they are pointed at."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedtiny.drawing.canvas import Area, Dot, Line, Point
from fedtiny.drawing.plot import Key, Mark, Plot

FEW = 40  # points that are still marked one by one
COLUMNS = 60  # of a plot, that tell values at most
REACH = 8.0  # pixels around a point without a marker that show its tip


@dataclass(frozen=True)
class Series:
    """A named line through points, with markers on it if they are few."""

    name: str
    color: str
    points: tuple[Point, ...]
    dashed: bool = False
    hollow: bool = False
    form: str = "circle"
    spreads: tuple[float, ...] = ()
    """How far the values of each point lie apart."""
    opacity: float = 1.0
    label: str = ""
    """Its name in the legend, if that says more."""

    @property
    def key(self) -> Key:
        """Its entry in a legend."""
        mark: Mark = "dashed line" if self.dashed else "line"
        return Key(self.label or self.name, self.color, mark, opacity=self.opacity)

    def tip(self, plot: Plot, x: float, y: float) -> str:
        """What is told of a point."""
        return f"{self.name}: {plot.y.tell(y)}, {plot.x.tell(x)}"


def draw_series(plot: Plot, series: Sequence[Series]) -> None:
    """Lines on top of each other; points tell their values."""
    for one in series:
        _draw_line(plot, one)
        if len(one.points) <= FEW and one.dashed == one.hollow:
            plot.canvas.add(*(_dot(plot, one, x, y, one.tip(plot, x, y)) for x, y in one.points))
        else:
            plot.canvas.add(*_point_tips(plot, one))


def draw_columns(plot: Plot, series: Sequence[Series]) -> None:
    """Lines over the same numbers; each column of the plot tells the values of all."""
    for one in series:
        _draw_line(plot, one)
        if len(one.points) <= FEW and not one.dashed:
            plot.canvas.add(*(_dot(plot, one, x, y) for x, y in one.points))
    plot.canvas.add(*_column_tips(plot, series))


def _draw_line(plot: Plot, one: Series) -> None:
    points = tuple(plot.at(*point) for point in one.points)
    width = 1.4 if one.hollow else 2.2
    plot.canvas.add(Line(points, one.color, width, one.dashed, one.opacity))
    for (_, y), (x, _), spread in zip(one.points, points, one.spreads, strict=False):
        draw_spread(plot, x, y, spread)


def _dot(plot: Plot, one: Series, x: float, y: float, tip: str = "") -> Dot:
    radius = 3.2 if one.form == "circle" else 4.0
    return Dot(*plot.at(x, y), radius, one.color, one.hollow, tip, one.form, one.opacity)


def _point_tips(plot: Plot, one: Series) -> list[Area]:
    """A tip for each point of a line, or for some of many: the last is always one."""
    every = -(-len(one.points) // FEW)
    told = one.points[::-1][::every][::-1]
    places = ((plot.at(x, y), one.tip(plot, x, y)) for x, y in told)
    side = 2 * REACH
    return [Area(x - REACH, y - REACH, side, side, tip) for (x, y), tip in places]


def _column_tips(plot: Plot, series: Sequence[Series]) -> list[Area]:
    """The values of all lines at one x, told over the whole height; of many x some."""
    every_x = sorted({x for one in series for x, _ in one.points})
    told = every_x[::-1][:: -(-len(every_x) // COLUMNS)][::-1]
    middles = [plot.x.at((a + b) / 2) for a, b in pairwise(told)]
    edges = pairwise([plot.x.start, *middles, plot.x.end])
    top, height = plot.y.end, plot.y.start - plot.y.end
    return [
        Area(start, top, end - start, height, _column(plot, series, x))
        for x, (start, end) in zip(told, edges, strict=True)
    ]


def _column(plot: Plot, series: Sequence[Series], x: float) -> str:
    found = ((one.name, dict(one.points)) for one in series)
    values = (f"{name}: {plot.y.tell(points[x])}" for name, points in found if x in points)
    return "\n".join((plot.x.tell(x), *values))


def draw_spread(plot: Plot, x: float, value: float, spread: float) -> None:
    """A line as long as the standard deviation, up and down."""
    if spread > 0:
        ends = (max(value - spread, plot.y.low), min(value + spread, plot.y.high))
        low, high = (plot.y.at(end) for end in ends)
        plot.canvas.add(Line(((x, low), (x, high)), "ink", 1.2))
        plot.canvas.add(*(Line(((x - 3, at), (x + 3, at)), "ink", 1.2) for at in (low, high)))
