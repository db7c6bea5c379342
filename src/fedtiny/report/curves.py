"""How several runs learned: accuracy over rounds, bytes and FLOPs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from fedtiny.drawing import palette
from fedtiny.drawing.canvas import FORMS, Canvas, Point
from fedtiny.drawing.panels import Abscissa, Panel, draw_shares
from fedtiny.drawing.plot import Series
from fedtiny.experiments.curves import ROUNDS, mean_points
from fedtiny.experiments.quantities import label
from fedtiny.report.comparison import Group, look
from fedtiny.report.facts import Figure, flops_number
from fedtiny.report.run import Run
from fedtiny.runs import formatting
from fedtiny.runs.metrics import Record, number
from fedtiny.runs.numbering import round_number

MAX_PANELS = 3  # densities that have curves: the lowest

Kind = tuple[str, float]
"""A method and a density."""


@dataclass(frozen=True)
class Spent:
    """What accuracy is drawn over, and how much of it a run had spent after each round."""

    name: str
    title: str
    caption: str
    x: Abscissa
    spent: Callable[[Run], Sequence[float]]


def _rounds(run: Run) -> list[float]:
    return [float(round_number(record)) for record in run.records]


def bytes_so_far(run: Run) -> list[float]:
    """What a device that answers in every round has moved, selection with it; empty if unknown."""
    before = _moved(run.selection) if run.selection else 0.0
    found = [_moved(record) for record in run.records]
    known = [moved for moved in found if moved is not None]
    if before is None or len(known) < len(found):
        return []
    each = (moved / _answering(record) for moved, record in zip(known, run.records, strict=True))
    return list(accumulate(each, initial=before / run.config.fleet.devices))[1:]


def _moved(part: Record) -> float | None:
    down, up = number(part, "bytes_down"), number(part, "bytes_up")
    return None if down is None or up is None else down + up


def _answering(record: Record) -> int:
    answered = record.get("answered")
    return max(1, len(answered)) if isinstance(answered, list) else 1


def flops_so_far(run: Run) -> list[float]:
    """What a device of mean size has computed in its rounds; empty if unknown."""
    found = [number(record, "flops") for record in run.records]
    known = [flops for flops in found if flops is not None]
    return list(accumulate(known)) if len(known) == len(found) else []


SPENT = (
    Spent(
        "accuracies",
        "Accuracy by round",
        "Test accuracy after each round, the mean over seeds.",
        ROUNDS,
        _rounds,
    ),
    Spent(
        "accuracies_by_bytes",
        "Accuracy by bytes",
        "The same over what a device has moved so far, both ways, if it answers in every round; "
        "what selecting the first mask moved is counted.",
        Abscissa("bytes of a device so far", formatting.size),
        bytes_so_far,
    ),
    Spent(
        "accuracies_by_flops",
        "Accuracy by training FLOPs",
        "The same over the FLOPs that a device of mean size has trained with so far, adjustments "
        "included.",
        Abscissa("training FLOPs of a device so far", flops_number),
        flops_so_far,
    ),
)


def accuracy_curves(group: Group) -> list[Figure]:
    """Accuracy over all that runs spend on their way, as far as two of them tell it."""
    return [figure for spent in SPENT if (figure := _figure(group, spent))]


def _figure(group: Group, spent: Spent) -> Figure | None:
    shown, left_out = _panels(group, spent.spent)
    if len({line.name for panel in shown for line in panel.lines}) < 2:
        return None
    lowest = f" Of the densities the {MAX_PANELS} lowest." if left_out else ""
    dashed = any(line.dashed for panel in shown for line in panel.lines)
    caption = spent.caption + lowest + (" Dashed: dense." if dashed else "")
    canvas = Canvas(height=0)
    draw_shares(canvas, shown, spent.x)
    return Figure(spent.name, spent.title, caption, canvas)


def _panels(group: Group, spent: Callable[[Run], Sequence[float]]) -> tuple[list[Panel], bool]:
    """A panel for each density with a line for each method, and whether some are left out.

    One method at several densities has one panel. Dense runs are in every panel.
    """
    kinds: dict[Kind, list[Run]] = {}
    for run in group.runs:
        kinds.setdefault((run.config.method, run.config.density), []).append(run)
    curves = {kind: _mean(runs, spent) for kind, runs in kinds.items()}
    curves = {kind: points for kind, points in curves.items() if points}
    densities = sorted({density for _, density in curves if density < 1}, reverse=True)
    if len({method for method, density in curves if density < 1}) < 2:
        return [Panel("", _lines_by_density(group, curves))] if curves else [], False
    panels = [
        Panel(
            f"density {density:g}",
            [_line(group, kind, curves[kind]) for kind in curves if kind[1] in (density, 1)],
        )
        for density in densities[-MAX_PANELS:]
    ]
    return panels, len(densities) > MAX_PANELS


def _mean(runs: Sequence[Run], spent: Callable[[Run], Sequence[float]]) -> tuple[Point, ...]:
    return mean_points([_points(run, spent(run)) for run in runs])


def _points(run: Run, spent: Sequence[float]) -> dict[int, Point]:
    """What was spent and reached after each round that was evaluated."""
    reached = ((round_number(record), number(record, "accuracy")) for record in run.records)
    found = zip(reached, spent, strict=False)
    return {done: (x, accuracy) for (done, accuracy), x in found if accuracy is not None}


def _line(group: Group, kind: Kind, points: tuple[Point, ...]) -> Series:
    """A line of the method's color in the panel of a density."""
    color, form = look(group, kind[0])
    return Series(label(kind[0]), color, points, kind[1] == 1, form=form)


def _lines_by_density(group: Group, curves: Mapping[Kind, tuple[Point, ...]]) -> list[Series]:
    """One method, the densest first: each density has a color of its own."""
    densities = sorted((kind for kind in curves if kind[1] < 1), key=lambda kind: -kind[1])
    dense = [_line(group, kind, points) for kind, points in curves.items() if kind[1] == 1]
    if len(densities) < 2:
        return [*dense, *(_line(group, kind, curves[kind]) for kind in densities)]
    return dense + [
        Series(
            f"{label(method)} {density:g}",
            palette.series("", place),
            curves[method, density],
            form=FORMS[place % len(FORMS)],
        )
        for place, (method, density) in enumerate(densities)
    ]
