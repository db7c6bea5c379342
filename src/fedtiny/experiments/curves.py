"""Accuracy over rounds, bytes and FLOPs: a panel for each model and density, a line a method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fedtiny.drawing import files, palette
from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import SMALL, Canvas, Point, Text
from fedtiny.drawing.panels import MAX_ACROSS, WIDTH, Abscissa, Panel, draw_shares
from fedtiny.drawing.plot import Key
from fedtiny.drawing.series import Series
from fedtiny.experiments.finished import Finished
from fedtiny.experiments.places import Place, along, in_order
from fedtiny.experiments.quantities import label, scientific, with_axis
from fedtiny.experiments.results import Results
from fedtiny.runs import formatting

ROUNDS = Abscissa("round", integers=True)
PAPER = Key("paper, at its end", "muted", "hollow dot")


@dataclass(frozen=True)
class Over:
    """What accuracy is drawn over, and how much of it a run had used after so many rounds."""

    file: str
    title: str
    x: Abscissa
    used: Callable[[Finished, int], float]


def bytes_by_mean_round(run: Finished, rounds: int) -> float:
    """What a device moved in selection and in so many rounds; of rounds the mean alone is known.

    Of all rounds that is what they moved, to the byte.
    """
    numbers = run.numbers
    return numbers.get("selection_bytes", 0.0) + rounds * numbers.get("bytes_round", 0.0)


BY_ROUND = Over("curves", "by round", ROUNDS, lambda run, rounds: rounds)
BY_BYTES = Over(
    "curves_by_bytes",
    "by bytes of a device",
    Abscissa("bytes of a device so far, down and up", formatting.size, told=formatting.size),
    bytes_by_mean_round,
)


BY_FLOPS = Over(
    "curves_by_flops",
    "by training FLOPs of a device",
    Abscissa("training FLOPs of a device so far, adjustments apart", scientific, told=scientific),
    lambda run, rounds: rounds * run.numbers.get("flops_training", 0.0),
)


def mean_points(runs: Sequence[Mapping[int, Point]]) -> tuple[Point, ...]:
    """The mean of points over runs, at the rounds that all of them have."""
    shared = sorted(set.intersection(*map(set, runs))) if runs else []
    by_round = ([run[done] for run in runs] for done in shared)
    return tuple((fmean(x for x, _ in own), fmean(y for _, y in own)) for own in by_round)


def write(results: Results, folder: Path) -> list[Path]:
    """Write the figures in every format that can be written here, if some cell has a curve."""
    paths: list[Path] = []
    for over in (BY_ROUND, BY_BYTES, BY_FLOPS):
        if drawn := draw(results, over):
            title = f"{results.experiment.title}, {over.title}"
            paths += files.write(drawn, title, folder / over.file)[0]
    return paths


def draw(results: Results, over: Over = BY_ROUND) -> Canvas | None:
    """One legend for all panels that have a line, and the paper's values at their right ends."""
    shown = panels(results, over)
    if not shown:
        return None
    canvas = Canvas(min(MAX_ACROSS, len(shown)) * WIDTH, 0)
    caption = f"accuracy {over.title}, {results.made_at}"
    canvas.add(
        Text(4, 15, results.experiment.title, color="ink", bold=True, size=15),
        Text(4, 15 + plots.LINE_HEIGHT, caption, size=SMALL),
    )
    known = any(line.hollow for panel in shown for line in panel.lines)
    draw_shares(canvas, shown, over.x, [PAPER] if known else [], plots.LINE_HEIGHT + 22.0)
    return canvas


def panels(results: Results, over: Over = BY_ROUND) -> list[Panel]:
    """A panel for each combination of the axes but the one whose values are lines.

    A dense run has no density, so it is in the panels of all densities.
    """
    varied = results.experiment.line_axis
    others = [axis.name for axis in results.experiment.axes if axis.name != varied]
    places = in_order([p for p in results.places if _curve(results, p, over)], others)
    some = [place for place in places if not place.dense] or places
    shown = {place.where(*others): place for place in reversed(some)}
    return [
        Panel(
            ", ".join(with_axis(axis, place.at[axis].label) for axis in others),
            _lines(results, varied, [p for p in places if _beside(p, place, others)], over),
        )
        for place in reversed(shown.values())
    ]


def look(results: Results, axis: str, place: Place) -> tuple[str, str, str]:
    """The name, color and marker of a place among all values of an axis."""
    number = [at.value for at in along(results.places, axis)].index(place.at[axis].value)
    name = with_axis(axis, label(place.at[axis].label))
    color = palette.method(name) if axis == "method" else palette.series(name, number)
    return name, color, palette.form(name, number)


def _beside(place: Place, other: Place, axes: Sequence[str]) -> bool:
    asked = [axis for axis in axes if not (axis == "density" and place.dense)]
    return place.where(*asked) == other.where(*asked)


def _lines(results: Results, axis: str, places: Sequence[Place], over: Over) -> list[Series]:
    """Our curves, and the paper's values as points at their ends."""
    ours, papers = [], []
    for place in sorted(places, key=lambda place: place.at[axis].rank):
        name, color, form = look(results, axis, place)
        points = _curve(results, place, over)
        ours.append(Series(name, color, points, place.dense, form=form))
        if printed := results.printed(place, "accuracy"):
            end = ((points[-1][0], printed.number),)
            papers.append(Series(f"{name}, paper", color, end, True, True, form))
    return [*ours, *papers]


def _curve(results: Results, place: Place, over: Over) -> tuple[Point, ...]:
    runs = [run for run in results.found.get(place.stem, ()) if run.curve]
    return mean_points(
        [{done: (over.used(run, done), value) for done, value in run.curve} for run in runs]
    )
