"""An experiment as a figure, with lines or bars: ours filled, the paper's hollow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from fedtiny.drawing import files, palette
from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import SMALL, Canvas, Dot, Line, Text, shortened
from fedtiny.drawing.series import Series, draw_series, draw_spread
from fedtiny.errors import plural
from fedtiny.experiments.places import Coordinate, Place, along
from fedtiny.experiments.quantities import QUANTITIES, axis_label, label, with_axis
from fedtiny.experiments.results import Results, Value
from fedtiny.experiments.scale import DENSITY_OF_BEST_POOL, POOL
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

    def key(self, bars: bool) -> plots.Key:
        """Its entry in the legend."""
        mark: plots.Mark = "box" if bars else "dashed line" if self.level else "line, dot"
        return plots.Key(self.label, self.color, mark, self.form)

    def draw_printed(self, plot: plots.Plot, x: float, printed: Printed) -> None:
        """The paper's value at a place of the canvas, hollow."""
        at, tip = plot.y.at(printed.number), f"{self.label}, paper: {printed.text}"
        plot.canvas.add(Dot(x, at, 4, self.color, True, tip, self.form))


def draw_lines(plot: plots.Plot, shown: Sequence[Shown]) -> None:
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


def draw_bars(plot: plots.Plot, shown: Sequence[Shown], groups: int) -> None:
    """Bars side by side in groups, the paper's values marked on them."""
    room = GROUP / len(shown)
    width = plot.x.at(BAR * room) - plot.x.at(0)
    for group in range(groups):
        present = [one for one in shown if group in one.ours]
        for turn, one in enumerate(present):
            x = plot.x.at(group + (turn - (len(present) - 1) / 2) * room)
            ours, printed = one.ours[group], one.printed.get(group)
            if ours:
                tip = f"{one.label}, {plot.x.text(group)}: {plot.y.tell(ours.mean)}"
                plot.bar(x, width, plot.y.low, ours.mean, one.color, tip)
                draw_spread(plot, x, ours.mean, ours.spread)
            if printed:
                one.draw_printed(plot, x, printed)


PANEL = {"lines": 420.0, "bars": 560.0}  # pixels across
PAPER = {
    "lines": plots.Key("paper", "muted", "dashed line, hollow dot"),
    "bars": plots.Key("paper", "muted", "hollow dot", "diamond"),
}
MAX_PANELS_A_ROW = 2
TITLE = 26.0
GAP = 14.0  # between rows of panels
MARGIN = 1.2  # beside the first and the last value of a logarithmic axis, as a factor
WIDE = 100  # times the smallest value: bars of such values need a logarithmic axis


@dataclass(frozen=True)
class Panel:
    """One pair of axes: what it shows, of these quantities."""

    title: str
    quantities: tuple[str, ...]
    groups: Sequence[Coordinate]
    """What stands on the x axis."""
    series: Sequence[Shown]

    @property
    def values(self) -> list[float]:
        """Ours with their spread, and the paper's."""
        ours = [value for one in self.series for value in one.ours.values() if value]
        printed = [value.number for one in self.series for value in one.printed.values()]
        return [*printed, *(v.mean - v.spread for v in ours), *(v.mean + v.spread for v in ours)]


def panels(results: Results) -> list[Panel]:
    """A panel for each value of the axis that is spread over panels, or for each quantity."""
    layout, places = results.experiment.figure, results.places
    if layout.panels is not None:
        axis = layout.panels
        return [
            _panel(results, at.label, [p for p in places if p.at[axis].value == at.value], layout.y)
            for at in along(places, axis)
        ]
    if layout.series is None:
        return [_panel(results, "", places, layout.y)]
    return [_panel(results, "", places, (quantity,)) for quantity in layout.y]


def _panel(
    results: Results, title: str, places: Sequence[Place], quantities: tuple[str, ...]
) -> Panel:
    layout, groups = results.experiment.figure, along(places, results.experiment.figure.x)
    if layout.series is None:
        named = [(QUANTITIES[name].label, name, places) for name in quantities]
    else:
        named = [
            (label(at.label), quantities[0], own)
            for at in along(results.places, layout.series)
            for own in [[p for p in places if p.at[layout.series].value == at.value]]
        ]
    lines, order, series = layout.kind == "lines", [at.value for at in groups], []
    for number, (name, quantity, own) in enumerate(named):
        at = {place.at[layout.x].value: place for place in own}
        xs = {x if lines else order.index(x): x for x in at}
        by_x = {float(x): at[xs[x]] for x in sorted(xs)}
        printed = {x: results.printed(place, quantity) for x, place in by_x.items()}
        shown = Shown(
            with_axis(layout.series or "", name) if lines else name,
            palette.method(name) if layout.series == "method" else palette.series(name, number),
            palette.form(name, number) if lines else "diamond",
            {x: results.ours(place, quantity) for x, place in by_x.items()},
            {x: value for x, value in printed.items() if value},
            lines and layout.x == "density" and bool(own) and all(p.dense for p in own),
        )
        series.append(shown)
    return Panel(title, quantities, groups, series)


def write(results: Results, folder: Path) -> tuple[list[Path], str]:
    """Write the figure in every format; returns the paths, and why there is no PNG."""
    return files.write(draw(results), results.experiment.title, folder / "figure")


def draw(results: Results, *, alone: bool = True) -> Canvas:
    """One legend for all panels, and the panels in rows.

    A figure that stands alone has a title and tells of the paper.
    """
    shown, layout = panels(results), results.experiment.figure
    across, width = min(MAX_PANELS_A_ROW, len(shown)), PANEL[layout.kind]
    canvas, top = Canvas(across * width, 0), 0.0
    keys = [one.key(layout.kind == "bars") for one in shown[0].series]
    if alone:
        every = len(results.places)
        done = f"{every - results.missing} of {plural(every, 'cell')} finished"
        canvas.add(
            Text(4, 15, results.experiment.title, color="ink", bold=True, size=15),
            Text(4, 15 + plots.LINE_HEIGHT, f"{results.made_at}, {done}", size=SMALL),
        )
        keys, top = [*keys, PAPER[layout.kind]], plots.LINE_HEIGHT + 22.0
    top = plots.legend(canvas, keys, top)
    titled = layout.panels is not None
    above, values = TITLE if titled else GAP, [value for panel in shown for value in panel.values]
    for number, panel in enumerate(shown):
        row, column = divmod(number, across)
        left, under = column * width, top + row * (above + plots.HEIGHT + plots.BELOW + GAP)
        canvas.add(Text(left + width / 2, under + 14, panel.title, "middle", color="ink"))
        alike = values if titled else panel.values
        _draw_panel(results, panel, alike, canvas, left, left + width, under + above)
    return canvas


def _draw_panel(
    results: Results,
    panel: Panel,
    values: Sequence[float],
    canvas: Canvas,
    left: float,
    right: float,
    top: float,
) -> None:
    """A pair of axes, and what lies between them; panels to be compared have the same values."""
    layout, name = results.experiment.figure, QUANTITIES[panel.quantities[0]].reference
    beside = [v.mean for p in results.places if name and (v := results.ours(p, name))][:1]
    y = _y(panel.quantities, [*values, *beside], layout.kind == "bars")
    if layout.kind == "bars":
        names = [at.label for at in panel.groups]
        room, places = (right - left - 60) / len(names), range(len(names))
        x = plots.Axis(
            -0.5,
            len(names) - 0.5,
            places,
            axis_label(layout.x),
            text=lambda place: shortened(names[round(place)], room),
        )
        draw_bars(plots.Plot(canvas, x, y, top, left=left, right=right), panel.series, len(names))
        return
    plot = plots.Plot(
        canvas, _numbers(layout.x, panel, right - left), y, top, left=left, right=right
    )
    if layout.x == POOL:
        _mark_best_pools(plot, {place.config.density for place in results.places})
    for value in beside:
        plot.level(value, "muted", 1.4, dashed=True)
        text = QUANTITIES[name or ""].label.partition(",")[0]
        canvas.add(Text(plot.x.start + 4, plot.y.at(value) + 14, text, size=SMALL))
    draw_lines(plot, panel.series)


def _numbers(axis: str, panel: Panel, width: float) -> plots.Axis:
    """The very values of the runs (pools are too many), on a logarithmic axis if they allow it."""
    some = [one for one in panel.series if not one.level] or panel.series
    values = sorted({x for one in some for x in one.ours})
    log = values[0] > 0
    low, high = (values[0] / MARGIN, values[-1] * MARGIN) if log else plots.padded(values)
    numbers = plots.log_ticks(low, high) if axis == POOL else values
    return plots.with_room(plots.Axis(low, high, numbers, axis_label(axis), log), width - 60)


def _y(quantities: tuple[str, ...], values: Sequence[float], bars: bool) -> plots.Axis:
    """Accuracies linear; what lies far apart, or beside a reference, logarithmic."""
    shown = QUANTITIES[quantities[0]]
    title = shown.unit if len(quantities) > 1 else shown.label
    if quantities == ("accuracy",):
        low, high = plots.padded(values or [0.0, 1.0])
        low, high = (0.0, 1.0) if bars else (max(0.0, low), min(1.0, high))
        return plots.linear(low, high, title)
    low, high = min(values, default=1.0), max(values, default=1.0)
    if low > 0 and (high > WIDE * low if bars else shown.reference):
        low, high = low / MARGIN, high * MARGIN
        return plots.Axis(low, high, plots.log_ticks(low, high), title, log=True)
    low, high = 0.0 if bars else low, 1.08 * high
    return plots.linear(low, high, title)


def _mark_best_pools(plot: plots.Plot, densities: set[float]) -> None:
    """C* = 0.1 / d for each density."""
    for density in sorted(densities):
        at = plot.x.at(DENSITY_OF_BEST_POOL / density)
        plot.canvas.add(
            Line(((at, plot.y.start), (at, plot.y.end)), "good", 1.2, dashed=True),
            Text(at, plot.y.end - 5, "C*", "middle", SMALL, "good"),
        )
