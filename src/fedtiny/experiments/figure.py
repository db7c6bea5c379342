"""An experiment as a figure: ours filled, the paper's hollow."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtiny.drawing import files, palette
from fedtiny.drawing.canvas import FORMS, SMALL, Canvas, Line, Words, shortened, text_width
from fedtiny.drawing.plot import (
    BELOW,
    HEIGHT,
    LINE_HEIGHT,
    AxisScale,
    Key,
    Plot,
    PlotAxis,
    legend,
    log_ticks,
    padded,
    ticks,
)
from fedtiny.experiments import labels
from fedtiny.experiments.marks import Shown, ShownSeries, draw_bars, draw_lines
from fedtiny.experiments.places import Coordinate, Place, along
from fedtiny.experiments.quantities import QUANTITIES
from fedtiny.experiments.results import Results
from fedtiny.experiments.scale import DENSITY_OF_BEST_POOL, POOL

PANEL = {"lines": 420.0, "bars": 560.0}  # pixels across
PAPER = {
    "lines": Key("paper", "muted", "dashed line, hollow dot"),
    "bars": Key("paper", "muted", "hollow dot", "diamond"),
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
    series: Sequence[ShownSeries]

    @property
    def values(self) -> list[float]:
        """Ours with their spread, and the paper's."""
        shown = [value for one in self.series for value in one.values]
        ours = [value.ours for value in shown if value.ours]
        printed = [value.printed.number for value in shown if value.printed]
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
    order = [at.value for at in groups]

    def shown(place: Place, quantity: str) -> Shown:
        value = place.at[layout.x].value
        x = float(value) if layout.kind == "lines" else order.index(value)
        return Shown(x, results.ours(place, quantity), results.printed(place, quantity))

    if layout.series is None:
        named = [(QUANTITIES[name].label, name, places) for name in quantities]
    else:
        named = [
            (labels.value(at.label), quantities[0], own)
            for at in along(results.places, layout.series)
            for own in [[p for p in places if p.at[layout.series].value == at.value]]
        ]
    series = []
    for number, (label, quantity, own) in enumerate(named):
        color, form = palette.series(label, number), FORMS[number % len(FORMS)]
        values = sorted((shown(place, quantity) for place in own), key=lambda value: value.x)
        level = layout.x == "density" and bool(own) and all(p.dense for p in own)
        if layout.kind == "bars":
            series.append(ShownSeries(label, color, "diamond", values))
        else:
            name = labels.with_axis(layout.series or "", label)
            series.append(ShownSeries(name, color, form, values, level))
    return Panel(title, quantities, groups, series)


def write(results: Results, folder: Path) -> tuple[list[Path], str]:
    """Write the figure in every format; returns the paths, and why there is no PNG."""
    return files.write(draw(results), results.experiment.title, folder / "figure")


def draw(results: Results) -> Canvas:
    """The whole figure: title, one legend for all panels, and the panels in rows."""
    shown, kind = panels(results), results.experiment.figure.kind
    across, width = min(MAX_PANELS_A_ROW, len(shown)), PANEL[kind]
    canvas = Canvas(across * width, 0)
    done = f"{len(results.places) - results.missing} of {len(results.places)} cells finished"
    canvas.add(
        Words(4, 15, results.experiment.title, color="ink", bold=True, size=15),
        Words(4, 15 + LINE_HEIGHT, f"scale {results.scale.name}, {done}", size=SMALL),
    )
    keys = [*(one.key(kind == "bars") for one in shown[0].series), PAPER[kind]]
    top = legend(canvas, keys, LINE_HEIGHT + 22.0)
    titled = results.experiment.figure.panels is not None
    above, values = TITLE if titled else GAP, [value for panel in shown for value in panel.values]
    for number, panel in enumerate(shown):
        row, column = divmod(number, across)
        left, under = column * width, top + row * (above + HEIGHT + BELOW + GAP)
        canvas.add(Words(left + width / 2, under + 14, panel.title, "middle", color="ink"))
        alike = values if titled else panel.values
        _draw_panel(results, panel, alike, canvas, left, left + width, under + above)
    return canvas


def draw_alone(results: Results) -> Canvas:
    """The first panel alone with its legend, for a page that has its own title."""
    canvas, panel = Canvas(height=0), panels(results)[0]
    top = legend(canvas, [one.key(bars=False) for one in panel.series])
    _draw_panel(results, panel, panel.values, canvas, 0, canvas.width, top)
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
        x = _groups(layout.x, [at.label for at in panel.groups], right - left)
        draw_bars(Plot(canvas, x, y, top, left=left, right=right), panel.series, len(panel.groups))
        return
    plot = Plot(canvas, _numbers(layout.x, panel, right - left), y, top, left=left, right=right)
    if layout.x == POOL:
        _mark_best_pools(plot, {place.config.density for place in results.places})
    for value in beside:
        plot.level(value, "muted", 1.4, dashed=True)
        text = QUANTITIES[name or ""].label.partition(",")[0]
        canvas.add(Words(plot.x.start + 4, plot.y.at(value) + 14, text, size=SMALL))
    draw_lines(plot, panel.series)


def _numbers(axis: str, panel: Panel, width: float) -> PlotAxis:
    """The very values of the runs (pools are too many), on a logarithmic axis if they allow it."""
    some = [one for one in panel.series if not one.level] or panel.series
    values = sorted({value.x for one in some for value in one.values})
    log = values[0] > 0
    low, high = (values[0] / MARGIN, values[-1] * MARGIN) if log else padded(values)
    scale = AxisScale(low, high, 0, width - 60, log)
    shown: list[float] = []
    for number in log_ticks(low, high) if axis == POOL else values:
        room = text_width(f"{number:g}", SMALL) + 6
        if not shown or scale.at(number) - scale.at(shown[-1]) >= room:
            shown.append(number)
    return PlotAxis(low, high, shown, labels.axis(axis), log)


def _groups(axis: str, names: Sequence[str], width: float) -> PlotAxis:
    """A number for each group of bars, shown by its name."""
    room = (width - 60) / len(names)

    def text(number: float) -> str:
        return shortened(names[round(number)], room)

    return PlotAxis(-0.5, len(names) - 0.5, range(len(names)), labels.axis(axis), text=text)


def _y(quantities: tuple[str, ...], values: Sequence[float], bars: bool) -> PlotAxis:
    """Accuracies linear; what lies far apart, or beside a reference, logarithmic."""
    shown = QUANTITIES[quantities[0]]
    title = shown.unit if len(quantities) > 1 else shown.label
    if quantities == ("accuracy",):
        low, high = padded(values or [0.0, 1.0])
        low, high = (0.0, 1.0) if bars else (max(0.0, low), min(1.0, high))
        return PlotAxis(low, high, ticks(low, high), title)
    low, high = min(values, default=1.0), max(values, default=1.0)
    if low > 0 and (high > WIDE * low if bars else shown.reference):
        low, high = low / MARGIN, high * MARGIN
        return PlotAxis(low, high, log_ticks(low, high), title, log=True)
    low, high = 0.0 if bars else low, 1.08 * high
    return PlotAxis(low, high, ticks(low, high), title)


def _mark_best_pools(plot: Plot, densities: set[float]) -> None:
    """C* = 0.1 / d for each density."""
    for density in sorted(densities):
        at = plot.x.at(DENSITY_OF_BEST_POOL / density)
        plot.canvas.add(
            Line(((at, plot.y.start), (at, plot.y.end)), "good", 1.2, dashed=True),
            Words(at, plot.y.end - 5, "C*", "middle", SMALL, "good"),
        )
