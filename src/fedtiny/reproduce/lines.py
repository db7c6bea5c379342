"""Drawing lines over a setting: ours full, the paper's dashed and hollow."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING

from fedtiny.extras import require
from fedtiny.reproduce import labels, style
from fedtiny.reproduce.outcome import Outcome
from fedtiny.reproduce.places import Place, along
from fedtiny.reproduce.quantities import QUANTITIES
from fedtiny.reproduce.scale import DENSITY_OF_BEST_POOL, POOL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis

ONE_TWO_FIVE = (1.0, 2.0, 5.0)
MARGIN = 1.2  # beside the first and the last value, as a factor


@dataclass(frozen=True)
class Line:
    """The places of one series in a panel, from left to right."""

    label: str
    colour: str
    marker: str
    places: Sequence[Place]
    xs: Sequence[float]


def draw_lines(
    outcome: Outcome, places: Sequence[Place], quantities: tuple[str, ...], axes: "Axes"
) -> None:
    """A line for each value of the series' axis."""
    (quantity,) = quantities
    for line in _lines(outcome, places):
        _draw_ours(outcome, line, quantity, axes)
        _draw_printed(outcome, line, quantity, axes)
    _scale_x(outcome, places, axes)
    _draw_reference(outcome, places, quantity, axes)
    axes.plot([], [], "o--", color=style.GREY, mfc="white", lw=1.2, label="paper")


def _lines(outcome: Outcome, places: Sequence[Place]) -> list[Line]:
    series, x = outcome.experiment.figure.series, outcome.experiment.figure.x
    assert series is not None
    lines = []
    for number, at in enumerate(along(outcome.places, series)):
        own = [place for place in places if place.at[series].value == at.value]
        own.sort(key=lambda place: float(place.at[x].value))
        xs = [float(place.at[x].value) for place in own]
        label, colour = labels.with_axis(series, at.label), style.colour(at.label, number)
        lines.append(Line(label, colour, style.marker(number), own, xs))
    return lines


def _draw_ours(outcome: Outcome, line: Line, quantity: str, axes: "Axes") -> None:
    """A place that is missing leaves a gap."""
    values = [outcome.ours(place, quantity) for place in line.places]
    means = [value.mean if value else nan for value in values]
    spreads = [value.spread if value else nan for value in values]
    axes.errorbar(
        line.xs,
        means,
        yerr=spreads if any(spread > 0 for spread in spreads) else None,
        color=line.colour,
        marker=line.marker,
        capsize=3,
        label=line.label,
    )


def _draw_printed(outcome: Outcome, line: Line, quantity: str, axes: "Axes") -> None:
    printed = [outcome.printed(place, quantity) for place in line.places]
    points = [(x, value.number) for x, value in zip(line.xs, printed, strict=True) if value]
    if points:
        axes.plot(
            *zip(*points, strict=True),
            ls="--",
            lw=1.2,
            color=line.colour,
            marker=line.marker,
            mfc="white",
            ms=7,
        )


def _scale_x(outcome: Outcome, places: Sequence[Place], axes: "Axes") -> None:
    """A logarithmic axis with the very values of the runs; pools are too many for that."""
    x = outcome.experiment.figure.x
    values = sorted(float(at.value) for at in along(places, x))
    axes.set_xscale("log")
    axes.set_xlim(values[0] / MARGIN, values[-1] * MARGIN)
    if x == POOL:
        _tick(axes.xaxis, ONE_TWO_FIVE)
        _mark_best_pools(places, axes)
    else:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()


def _tick(axis: "XAxis | YAxis", steps: tuple[float, ...]) -> None:
    """Plain numbers on a logarithmic axis, at these steps of each power of ten."""
    ticker = require("matplotlib.ticker", extra="plot")
    axis.set_major_locator(ticker.LogLocator(subs=steps))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(ticker.NullFormatter())


def _mark_best_pools(places: Sequence[Place], axes: "Axes") -> None:
    """C* = 0.1 / d for each density."""
    for density in dict.fromkeys(place.config.density for place in places):
        best = DENSITY_OF_BEST_POOL / density
        axes.axvline(best, color=style.GREEN, ls=":", lw=1.4, zorder=0)
        axes.annotate(
            "C*", (best, 1), xycoords=("data", "axes fraction"), color=style.GREEN, ha="center"
        )


def _draw_reference(outcome: Outcome, places: Sequence[Place], quantity: str, axes: "Axes") -> None:
    """A line for a quantity that all places share, such as the size of the dense model."""
    name = QUANTITIES[quantity].reference
    if name is None:
        return
    known = [value for place in places if (value := outcome.ours(place, name))]
    if known:
        axes.set_yscale("log")
        _tick(axes.yaxis, ONE_TWO_FIVE)
        axes.axhline(known[0].mean, color=style.GREY, ls="--", lw=1.4)
        axes.annotate(
            QUANTITIES[name].label.partition(",")[0],
            (0.01, known[0].mean),
            xycoords=("axes fraction", "data"),
            xytext=(0, -4),
            textcoords="offset points",
            va="top",
            color=style.GREY,
            fontsize=9,
        )
