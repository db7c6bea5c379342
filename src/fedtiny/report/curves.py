"""How runs learned: accuracy over rounds, bytes, time and FLOPs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, count, islice
from string import ascii_uppercase

from fedtiny.drawing.canvas import FORMS, Canvas, Point
from fedtiny.drawing.figure import Figure
from fedtiny.drawing.panels import Abscissa, Panel, draw_shares
from fedtiny.drawing.series import Series
from fedtiny.experiments.curves import ROUNDS, mean_points
from fedtiny.experiments.quantities import label
from fedtiny.report.comparison import Group, look, unusual
from fedtiny.report.costs import flops_number, flops_text
from fedtiny.report.facts import duration
from fedtiny.report.run import Run
from fedtiny.runs import formatting
from fedtiny.runs.metrics import Record, moved, number

MAX_PANELS = 3  # densities that have curves: the lowest
FAINTEST = 0.4  # of a method's lines, the least dense

Kind = tuple[int, str, float]
"""The number of a group, a method and a density."""
Unit = tuple[Abscissa, float]
"""What is below an axis, and how much one of its numbers is."""


@dataclass(frozen=True)
class Spent:
    """What accuracy is drawn over, and how much of it a run had spent after each round."""

    name: str
    title: str
    caption: str
    so_far: Callable[[Run], Sequence[float]]
    unit: Callable[[float], Unit]
    """The axis, by how much is spent at most."""


def _rounds(run: Run) -> list[float]:
    return [float(record["round_number"]) for record in run.records]


def bytes_so_far(run: Run) -> list[float]:
    """What a device that answers in every round has moved, selection with it; empty if unknown."""
    before = moved(run.selection) if run.selection else 0.0
    found = [moved(record) for record in run.records]
    known = [count for count in found if count is not None]
    if before is None or len(known) < len(found):
        return []
    each = (count / _answering(record) for count, record in zip(known, run.records, strict=True))
    return list(accumulate(each, initial=before / run.config.fleet.devices))[1:]


def _answering(record: Record) -> int:
    answered = record.get("answered")
    return max(1, len(answered)) if isinstance(answered, list) else 1


def flops_so_far(run: Run) -> list[float]:
    """What a device of mean size has computed in its rounds; empty if unknown."""
    return _so_far(run, "flops")


def time_so_far(run: Run) -> list[float]:
    """The seconds that its rounds took; empty if unknown."""
    return _so_far(run, "seconds")


def _so_far(run: Run, key: str) -> list[float]:
    found = [number(record, key) for record in run.records]
    known = [value for value in found if value is not None]
    return list(accumulate(known)) if len(known) == len(found) else []


def _time(longest: float) -> Unit:
    """Seconds, minutes or hours."""
    name, size = next(
        ((name, size) for name, size in (("h", 3600.0), ("min", 60.0)) if longest > 3 * size),
        ("s", 1.0),
    )
    return Abscissa(f"time so far, {name}", told=lambda value: duration(value * size)), size


SPENT = (
    Spent(
        "accuracies",
        "Accuracy by round",
        "Test accuracy after each round.",
        _rounds,
        lambda _: (ROUNDS, 1.0),
    ),
    Spent(
        "accuracies_by_bytes",
        "Accuracy over bytes",
        "Test accuracy over what a device has moved so far, both ways, if it answers in every "
        "round; what selecting the first mask and evaluating on devices moved is counted.",
        bytes_so_far,
        lambda _: (
            Abscissa("bytes of a device so far", formatting.size, told=formatting.size),
            1.0,
        ),
    ),
    Spent(
        "accuracies_by_time",
        "Accuracy over time",
        "Test accuracy over the time that the rounds took on the machine of the run, all devices "
        "and evaluation included; selection is not.",
        time_so_far,
        _time,
    ),
    Spent(
        "accuracies_by_flops",
        "Accuracy over training FLOPs",
        "Test accuracy over the FLOPs that a device of mean size has trained with so far, "
        "adjustments included.",
        flops_so_far,
        lambda _: (
            Abscissa("training FLOPs of a device so far", flops_number, told=flops_text),
            1.0,
        ),
    ),
)


def accuracy_curves_of(run: Run) -> list[Figure]:
    """Accuracy over all that one run spends, as far as it is known."""
    found = []
    for spent in SPENT[1:]:
        axis, size = _unit([run], spent)
        points = tuple(_points(run, spent.so_far(run), size).values())
        if points:
            line = Series(label(run.config.method), run.color, points)
            name = spent.name.replace("accuracies", "accuracy")
            found.append(_drawn(name, spent, spent.caption, [Panel("", [line])], axis))
    return found


def _unit(runs: Sequence[Run], spent: Spent) -> Unit:
    return spent.unit(max((so_far[-1] for run in runs if (so_far := spent.so_far(run))), default=0))


def _drawn(
    name: str, spent: Spent, caption: str, panels: Sequence[Panel], axis: Abscissa
) -> Figure:
    canvas = Canvas(height=0)
    draw_shares(canvas, panels, axis)
    return Figure(name, spent.title, caption, canvas)


def accuracy_curves(groups: Sequence[Group]) -> list[Figure]:
    """Accuracy over all that runs spend on their way, as far as two of them tell it."""
    return [figure for spent in SPENT if (figure := _figure(groups, spent))]


def _figure(groups: Sequence[Group], spent: Spent) -> Figure | None:
    axis, size = _unit([run for group in groups for run in group.runs], spent)
    shown, left_out = _panels(groups, spent, size)
    if len({line.name for panel in shown for line in panel.lines}) < 2:
        return None
    lowest = f" Of the densities the {MAX_PANELS} lowest." if left_out else ""
    dashed = any(line.dashed for panel in shown for line in panel.lines)
    told = "".join(f" {letter}: {settings}." for letter, settings in lettered(groups).values())
    caption = f"{spent.caption} Mean over seeds.{lowest}{' Dashed: dense.' if dashed else ''}{told}"
    return _drawn(spent.name, spent, caption, shown, axis)


def lettered(groups: Sequence[Group]) -> dict[int, tuple[str, str]]:
    """A letter for each group whose settings are not as usual, and these settings."""
    found = {number: unusual(group, groups) for number, group in enumerate(groups)}
    named = [(number, settings) for number, settings in found.items() if settings]
    letters = islice(chain(ascii_uppercase, map(str, count(1))), len(named))
    return {n: (letter, told) for (n, told), letter in zip(named, letters, strict=True)}


def _panels(groups: Sequence[Group], spent: Spent, size: float) -> tuple[list[Panel], bool]:
    """A panel for each density with a line for each method, and whether some are left out.

    One method at several densities has one panel. Dense runs are in every panel.
    """
    kinds: dict[Kind, list[Run]] = {}
    for place, group in enumerate(groups):
        for run in group.runs:
            kinds.setdefault((place, run.config.method, run.config.density), []).append(run)
    curves = {
        kind: mean_points([_points(run, spent.so_far(run), size) for run in runs])
        for kind, runs in kinds.items()
    }
    curves = {kind: points for kind, points in curves.items() if points}
    densities = sorted({density for *_, density in curves if density < 1}, reverse=True)
    if len({(place, method) for place, method, density in curves if density < 1}) < 2:
        return [Panel("", _lines_by_density(groups, curves))] if curves else [], False
    panels = [
        Panel(
            f"density {density:g}",
            [_line(groups, kind, curves[kind]) for kind in curves if kind[2] in (density, 1)],
        )
        for density in densities[-MAX_PANELS:]
    ]
    return panels, len(densities) > MAX_PANELS


def _points(run: Run, so_far: Sequence[float], size: float) -> dict[int, Point]:
    """What was spent and reached after each round that was evaluated."""
    reached = ((record["round_number"], number(record, "accuracy")) for record in run.records)
    found = zip(reached, so_far, strict=False)
    return {done: (x / size, accuracy) for (done, accuracy), x in found if accuracy is not None}


def _line(groups: Sequence[Group], kind: Kind, points: tuple[Point, ...]) -> Series:
    """A line of the method's color in the panel of a density; fainter with settings of its own."""
    place, method, density = kind
    color, form = look([run for group in groups for run in group.runs], method)
    letters = lettered(groups)
    name = f"{label(method)} ({letters[place][0]})" if place in letters else label(method)
    holders = [n for n, g in enumerate(groups) if method in {r.config.method for r in g.runs}]
    step = (1 - FAINTEST) / max(1, len(holders) - 1)
    opacity = 1 - holders.index(place) * step
    form = FORMS[(FORMS.index(form) + holders.index(place)) % len(FORMS)]
    return Series(name, color, points, density == 1, form=form, opacity=opacity)


def _lines_by_density(
    groups: Sequence[Group], curves: Mapping[Kind, tuple[Point, ...]]
) -> list[Series]:
    """One method, the densest first: all in its color, the less dense the fainter."""
    densities = sorted((kind for kind in curves if kind[2] < 1), key=lambda kind: -kind[2])
    dense = [_line(groups, kind, points) for kind, points in curves.items() if kind[2] == 1]
    if len(densities) < 2:
        return [*dense, *(_line(groups, kind, curves[kind]) for kind in densities)]
    step = (1 - FAINTEST) / (len(densities) - 1)
    return dense + [
        replace(
            _line(groups, kind, curves[kind]),
            name=f"{label(kind[1])} {kind[2]:g}",
            form=FORMS[place % len(FORMS)],
            opacity=1 - place * step,
        )
        for place, kind in enumerate(densities)
    ]
