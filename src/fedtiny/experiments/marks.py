"""What lies between the axes of an experiment's figure: lines or bars, ours and the paper's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from fedtiny.drawing.canvas import Dot
from fedtiny.drawing.plot import Key, Mark, Plot, Series, draw_series, draw_spread
from fedtiny.experiments.results import Value
from fedtiny.experiments.suite import Printed

GROUP = 0.84  # the share of the room that a full group of bars takes
BAR = 0.92  # the share of a bar's room that it fills


@dataclass(frozen=True)
class Shown:
    """A series of one color, by x from left to right; a level has no x and goes across the plot."""

    label: str
    color: str
    form: str
    ours: Mapping[float, Value | None]
    printed: Mapping[float, Printed]
    level: bool = False

    def key(self, bars: bool) -> Key:
        """Its entry in the legend."""
        mark: Mark = "box" if bars else "dashed line" if self.level else "line, dot"
        return Key(self.label, self.color, mark, self.form)

    def draw_printed(self, plot: Plot, x: float, printed: Printed) -> None:
        """The paper's value at a place of the canvas, hollow."""
        at, tip = plot.y.at(printed.number), f"{self.label}, paper: {printed.text}"
        plot.canvas.add(Dot(x, at, 4, self.color, True, tip, self.form))


def draw_lines(plot: Plot, shown: Sequence[Shown]) -> None:
    """Lines over a setting: ours full, the paper's below them, dashed and hollow."""
    for one in shown:
        if one.level:
            for printed in one.printed.values():
                one.draw_printed(plot, plot.x.end, printed)
        elif one.printed:
            points = tuple((x, printed.number) for x, printed in one.printed.items())
            paper = Series(f"{one.label}, paper", one.color, points, True, True, one.form)
            draw_series(plot, [paper])
    for one in shown:
        for known, group in groupby(one.ours.items(), key=lambda item: item[1] is not None):
            ours = [(x, value) for x, value in group if value]
            if known and one.level:
                plot.level(ours[0][1].mean, one.color, 1.5, dashed=True)
            elif known:  # what is missing leaves a gap
                points = tuple((x, value.mean) for x, value in ours)
                spreads = tuple(value.spread for _, value in ours)
                line = Series(one.label, one.color, points, form=one.form, spreads=spreads)
                draw_series(plot, [line])


def draw_bars(plot: Plot, shown: Sequence[Shown], groups: int) -> None:
    """Bars side by side in groups, the paper's values marked on them."""
    room = GROUP / len(shown)
    width = plot.x.at(BAR * room) - plot.x.at(0)
    for group in range(groups):
        present = [one for one in shown if group in one.ours]
        for turn, one in enumerate(present):
            x = plot.x.at(group + (turn - (len(present) - 1) / 2) * room)
            ours, printed = one.ours[group], one.printed.get(group)
            if ours:
                plot.bar(x, width, plot.y.low, ours.mean, one.color)
                draw_spread(plot, x, ours.mean, ours.spread)
            if printed:
                one.draw_printed(plot, x, printed)
