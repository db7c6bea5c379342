"""What accuracy costs: the end of every run over FLOPs and bytes, with the Pareto front.

Here and in reports, FLOPs are those of a plain round and of the costliest one for a device of mean
size, bytes what a device that answers in every round moves in the whole run, selection included.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from fedtiny.drawing import files, palette
from fedtiny.drawing import plot as plots
from fedtiny.drawing.canvas import SMALL, Canvas, Dot, Line, Point, Text
from fedtiny.drawing.panels import GAP, MAX_ACROSS, TITLE, WIDTH
from fedtiny.drawing.plot import Axis, Key, Plot
from fedtiny.drawing.series import Series
from fedtiny.experiments.curves import bytes_by_mean_round, look
from fedtiny.experiments.finished import Finished
from fedtiny.experiments.places import Place, in_order
from fedtiny.experiments.quantities import QUANTITIES, with_axis
from fedtiny.experiments.results import Results
from fedtiny.runs import formatting

T = TypeVar("T")
SAME = 0.01  # how far costs may lie apart that count as the same, as a share
MARGIN = 1.3  # beside the first and the last value of a logarithmic axis, as a factor


@dataclass(frozen=True)
class Cost:
    """What a run pays, as the horizontal axis of a panel."""

    title: str
    needs: tuple[str, ...]
    of: Callable[[Finished], float]
    text: Callable[[float], str] = plots.number_text


PLAIN = QUANTITIES["flops_plain"]
COSTS = (
    Cost(
        "FLOPs of a plain round, share of dense",
        ("flops_training", "flops_round", "flops_ratio"),
        lambda run: PLAIN.of(run.numbers),
    ),
    Cost(
        "FLOPs of the costliest round, share of dense",
        ("flops_ratio",),
        lambda run: run.numbers["flops_ratio"],
    ),
    Cost(
        "bytes of a device in the run, down and up",
        ("bytes_round", "rounds"),
        lambda run: bytes_by_mean_round(run, round(run.numbers["rounds"])),
        formatting.size,
    ),
)


@dataclass(frozen=True)
class Panel:
    """The ends of runs over one cost: a line for each method through its densities."""

    title: str
    cost: Cost
    lines: Sequence[Series]

    @property
    def points(self) -> list[Point]:
        """All ends."""
        return [point for line in self.lines for point in line.points]


def front(
    found: Sequence[T], cost: Callable[[T], float], accuracy: Callable[[T], float]
) -> list[T]:
    """From the cheapest to the dearest: each more accurate than all that cost less.

    Costs within 1% of each other count as the same.

    >>> points = [(100, 0.5), (200, 0.4), (300, 0.7), (100, 0.6), (301, 0.8)]
    >>> front(points, itemgetter(0), itemgetter(1))
    [(100, 0.6), (301, 0.8)]
    """
    best: list[T] = []
    for one in sorted(found, key=lambda one: (cost(one), -accuracy(one))):
        if not best or accuracy(one) > accuracy(best[-1]):
            best = [other for other in best if cost(other) < (1 - SAME) * cost(one)]
            best.append(one)
    return best


def write(results: Results, folder: Path) -> list[Path]:
    """Write the figure in every format that can be written here, if two runs can be compared."""
    drawn = draw(results)
    title = f"{results.experiment.title}, accuracy and cost"
    return files.write(drawn, title, folder / "pareto")[0] if drawn else []


def draw(results: Results) -> Canvas | None:
    """Panels of each model together, one for each cost."""
    shown = panels(results)
    if not shown:
        return None
    across = min(MAX_ACROSS, len({panel.cost.title for panel in shown}))
    canvas = Canvas(across * WIDTH, 0)
    caption = f"accuracy after the last round and what it costs, {results.made_at}"
    canvas.add(
        Text(4, 15, results.experiment.title, color="ink", bold=True, size=15),
        Text(4, 15 + plots.LINE_HEIGHT, caption, size=SMALL),
    )
    keys = {s.name: Key(s.name, s.color, "line, dot", s.form) for p in shown for s in p.lines}
    front_key = Key("Pareto front", "muted", "dashed line")
    top = plots.legend(canvas, [*keys.values(), front_key], plots.LINE_HEIGHT + 22.0)
    low, high = plots.padded([value for panel in shown for _, value in panel.points])
    y = plots.linear(max(0.0, low), min(1.0, high), "accuracy")
    for row, own in enumerate(_rows(shown, across)):
        under = top + row * (TITLE + plots.HEIGHT + plots.BELOW + GAP)
        for column, panel in enumerate(own):
            _draw_panel(canvas, panel, y, column * WIDTH, under)
    return canvas


def _rows(shown: Sequence[Panel], across: int) -> list[list[Panel]]:
    """So many panels in a row, each model's from a new one on."""
    found = []
    for _, same in groupby(shown, key=lambda panel: panel.title):
        own = list(same)
        found += [own[start : start + across] for start in range(0, len(own), across)]
    return found


def panels(results: Results) -> list[Panel]:
    """Lines are the values of one axis; densities lie on a line; the other axes are rows."""
    varied = results.experiment.line_axis
    axes = [axis.name for axis in results.experiment.axes]
    others = [axis for axis in axes if axis not in (varied, "density")]
    known = in_order([p for p in results.places if results.found.get(p.stem)], axes)
    rows = dict.fromkeys(place.where(*others) for place in known)
    found = []
    for row in rows:
        places = [place for place in known if place.where(*others) == row]
        title = ", ".join(with_axis(axis, places[0].at[axis].label) for axis in others)
        found += [Panel(title, cost, _lines(results, varied, places, cost)) for cost in COSTS]
    comparable = {panel.title for panel in found if len(panel.points) > 1}
    return [panel for panel in found if panel.title in comparable and panel.points]


def _lines(results: Results, axis: str, places: Sequence[Place], cost: Cost) -> list[Series]:
    ends: dict[tuple[str, str, str], list[Point]] = {}
    for place in sorted(places, key=lambda place: place.at[axis].rank):
        line, end = _line(results, axis, place), _end(results, place, cost)
        if line and end:
            ends.setdefault(line, []).append(end)
    return [
        Series(name, color, tuple(sorted(points)), form=form)
        for (name, color, form), points in ends.items()
    ]


def _line(results: Results, axis: str, place: Place) -> tuple[str, str, str] | None:
    """The name, color and marker of the line that a place is on."""
    lines = results.experiment.pareto
    if not lines:
        return look(results, axis, place)
    for number, (name, runs) in enumerate(lines.items()):
        if str(place.at[axis].value) in runs:
            return name, palette.method(name), palette.form(name, number)
    return None


def _end(results: Results, place: Place, cost: Cost) -> Point | None:
    """What the runs of a place cost and reached on the mean, if all of them tell both."""
    runs = results.found[place.stem]
    if not all({"accuracy", *cost.needs} <= run.numbers.keys() for run in runs):
        return None
    reached = results.ours(place, "accuracy")
    return (fmean(map(cost.of, runs)), reached.mean) if reached else None


def _draw_panel(canvas: Canvas, panel: Panel, y: Axis, left: float, top: float) -> None:
    canvas.add(Text(left + WIDTH / 2, top + 14, panel.title, "middle", color="ink"))
    costs = [cost for cost, _ in panel.points]
    low, high = min(costs) / MARGIN, max(costs) * MARGIN
    title = f"{panel.cost.title} (logarithmic)"
    x = Axis(low, high, plots.log_ticks(low, high), title, True, panel.cost.text)
    x = plots.with_room(x, WIDTH - 60)
    plot = Plot(canvas, x, y, top + TITLE, left=left, right=left + WIDTH)
    best = front(panel.points, itemgetter(0), itemgetter(1))
    canvas.add(Line(tuple(plot.at(*point) for point in best), "muted", 1.4, dashed=True))
    for line in panel.lines:
        canvas.add(Line(tuple(plot.at(*point) for point in line.points), line.color, 1.2))
        for cost, value in line.points:
            tip = f"{line.name}: {value:.4f}, {panel.cost.text(cost)}"
            canvas.add(Dot(*plot.at(cost, value), 4.2, line.color, tip=tip, form=line.form))
