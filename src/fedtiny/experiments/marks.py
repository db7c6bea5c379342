"""What lies between the axes of an experiment's figure: lines or bars, ours and the paper's."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from fedtiny.drawing.canvas import Box, Dot
from fedtiny.drawing.plot import Key, Mark, Plot, Series, draw_series, draw_spread
from fedtiny.experiments.paper import Printed
from fedtiny.experiments.results import Value

GROUP = 0.84  # the share of the room that a full group of bars takes
GAP = 0.08  # the share of a bar's room that is left free


@dataclass(frozen=True)
class Shown:
    """What is known at one x: ours, the paper's, or both."""

    x: float
    ours: Value | None
    printed: Printed | None


@dataclass(frozen=True)
class ShownSeries:
    """Values of one color, from left to right; a level has no x and goes across the plot."""

    label: str
    color: str
    form: str
    values: Sequence[Shown]
    level: bool = False

    def key(self, bars: bool) -> Key:
        """Its entry in the legend."""
        mark: Mark = "box" if bars else "dashed line" if self.level else "line, dot"
        return Key(self.label, self.color, mark, self.form)


def draw_lines(plot: Plot, shown: Sequence[ShownSeries]) -> None:
    """Lines over a setting: ours full, the paper's below them, dashed and hollow."""
    for one in shown:
        printed = [(value.x, value.printed) for value in one.values if value.printed]
        if one.level:
            for _, value in printed:
                _draw_printed(plot, one, plot.x.end, value)
        elif printed:
            points = tuple((x, value.number) for x, value in printed)
            paper = Series(f"{one.label}, paper", one.color, points, True, True, one.form)
            draw_series(plot, [paper])
    for one in shown:
        for known, group in groupby(one.values, key=lambda value: value.ours is not None):
            ours = [(value.x, value.ours) for value in group if value.ours]
            if known and one.level:
                plot.level(ours[0][1].mean, one.color, 1.5, dashed=True)
            elif known:  # what is missing leaves a gap
                points = tuple((x, value.mean) for x, value in ours)
                spreads = tuple(value.spread for _, value in ours)
                line = Series(one.label, one.color, points, form=one.form, spreads=spreads)
                draw_series(plot, [line])


def draw_bars(plot: Plot, shown: Sequence[ShownSeries], groups: int) -> None:
    """Bars side by side in groups, the paper's values marked on them."""
    width = GROUP / len(shown)
    for group in range(groups):
        present = [(one, value) for one in shown for value in one.values if value.x == group]
        for turn, (one, value) in enumerate(present):
            middle = group + (turn - (len(present) - 1) / 2) * width
            _draw_bar(plot, one, value, middle, (1 - GAP) * width)


def _draw_bar(plot: Plot, one: ShownSeries, value: Shown, middle: float, width: float) -> None:
    left, x, right = (plot.x.at(at) for at in (middle - width / 2, middle, middle + width / 2))
    if value.ours:
        top = plot.y.at(value.ours.mean)
        plot.canvas.add(Box(left, top, right - left, plot.y.start - top, one.color))
        draw_spread(plot, x, value.ours.mean, value.ours.spread)
    if value.printed:
        _draw_printed(plot, one, x, value.printed)


def _draw_printed(plot: Plot, one: ShownSeries, x: float, printed: Printed) -> None:
    """The paper's value at a place of the canvas, hollow."""
    at, tip = plot.y.at(printed.number), f"{one.label}, paper: {printed.text}"
    plot.canvas.add(Dot(x, at, 4, one.color, True, tip, one.form))
