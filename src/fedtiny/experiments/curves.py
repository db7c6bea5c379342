"""Accuracy over rounds, as a figure: a panel for each model and density, a line for each method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedtiny.drawing import files, palette
from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import SMALL, Canvas, Point, Text
from fedtiny.drawing.panels import MAX_ACROSS, WIDTH, Abscissa, Panel, draw_shares
from fedtiny.drawing.plot import Key
from fedtiny.drawing.series import Series
from fedtiny.experiments.places import Place, along, in_order
from fedtiny.experiments.quantities import label, with_axis
from fedtiny.experiments.results import Results

ROUNDS = Abscissa("round", integers=True)
PAPER = Key("paper, at its end", "muted", "hollow dot")


def mean_points(runs: Sequence[Mapping[int, Point]]) -> tuple[Point, ...]:
    """The mean of points over runs, at the rounds that all of them have."""
    shared = sorted(set.intersection(*map(set, runs))) if runs else []
    by_round = ([run[done] for run in runs] for done in shared)
    return tuple((fmean(x for x, _ in own), fmean(y for _, y in own)) for own in by_round)


def write(results: Results, folder: Path) -> list[Path]:
    """Write the figure in every format that can be written here, if some cell has a curve."""
    drawn = draw(results)
    if drawn is None:
        return []
    return files.write(drawn, f"{results.experiment.title}, by round", folder / "curves")[0]


def draw(results: Results) -> Canvas | None:
    """One legend for all panels that have a line, and the paper's values at their right ends."""
    shown = panels(results)
    if not shown:
        return None
    canvas = Canvas(min(MAX_ACROSS, len(shown)) * WIDTH, 0)
    canvas.add(
        Text(4, 15, results.experiment.title, color="ink", bold=True, size=15),
        Text(
            4, 15 + plots.LINE_HEIGHT, f"accuracy by round, scale {results.scale.name}", size=SMALL
        ),
    )
    known = any(line.hollow for panel in shown for line in panel.lines)
    draw_shares(canvas, shown, ROUNDS, [PAPER] if known else [], plots.LINE_HEIGHT + 22.0)
    return canvas


def panels(results: Results) -> list[Panel]:
    """A panel for each combination of the axes but the one whose values are lines.

    A dense run has no density, so it is in the panels of all densities.
    """
    experiment = results.experiment
    varied = experiment.table.best_of or experiment.figure.series or experiment.axes[-1].name
    others = [axis.name for axis in experiment.axes if axis.name != varied]
    places = in_order([p for p in results.places if _curve(results, p)], others)
    some = [place for place in places if not place.dense] or places
    shown = {place.where(*others): place for place in reversed(some)}
    return [
        Panel(
            ", ".join(with_axis(axis, place.at[axis].label) for axis in others),
            _lines(results, varied, [p for p in places if _beside(p, place, others)]),
        )
        for place in reversed(shown.values())
    ]


def _beside(place: Place, other: Place, axes: Sequence[str]) -> bool:
    asked = [axis for axis in axes if not (axis == "density" and place.dense)]
    return place.where(*asked) == other.where(*asked)


def _lines(results: Results, axis: str, places: Sequence[Place]) -> list[Series]:
    """Our curves, and the paper's values as points at their ends."""
    order = [at.value for at in along(results.places, axis)]
    ours, papers = [], []
    for place in sorted(places, key=lambda place: place.at[axis].rank):
        number = order.index(place.at[axis].value)
        name = with_axis(axis, label(place.at[axis].label))
        color = palette.method(name) if axis == "method" else palette.series(name, number)
        form = palette.form(name, number)
        points = _curve(results, place)
        ours.append(Series(name, color, points, place.dense, form=form))
        if printed := results.printed(place, "accuracy"):
            end = ((points[-1][0], printed.number),)
            papers.append(Series(f"{name}, paper", color, end, True, True, form))
    return [*ours, *papers]


def _curve(results: Results, place: Place) -> tuple[Point, ...]:
    runs = [run for run in results.found.get(place.stem, ()) if run.curve]
    return mean_points([{done: (done, value) for done, value in run.curve} for run in runs])
