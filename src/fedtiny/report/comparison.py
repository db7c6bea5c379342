"""Several runs side by side: accuracy over density, accuracy by round, and the paper's table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from fedtiny.compare.grid import Cell
from fedtiny.compare.rows import Row, rows
from fedtiny.compare.settings import CHOSEN_BY_THE_MACHINE, HOW_IT_IS_COMPUTED
from fedtiny.config.flat import Flat, flat
from fedtiny.errors import FedTinyError
from fedtiny.report import palette
from fedtiny.report.figure import Figure, points_of
from fedtiny.report.lines import Series, over_densities, over_rounds
from fedtiny.report.run import Run, number
from fedtiny.reproduce import labels
from fedtiny.runs.folder import RunFolder

VARIED = ("method", "density", "seed")
MAX_LINES = 9


@dataclass(frozen=True)
class Group:
    """Runs that differ in method, density and seed alone."""

    runs: tuple[Run, ...]
    settings: Flat
    repeats: tuple[Run, ...] = ()
    """Runs that another one of the group is already, to the seed: they count once."""

    def having(self, run: Run) -> "Group":
        """The group with one run more."""
        if any(_varied(run) == _varied(other) for other in self.runs):
            return replace(self, repeats=(*self.repeats, run))
        return replace(self, runs=(*self.runs, run))


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs that may stand in one table, together; finished ones are preferred to repeats."""
    found: list[Group] = []
    for run in sorted(runs, key=lambda run: not run.finished):
        own = _shared(run)
        same = next((number for number, group in enumerate(found) if group.settings == own), None)
        if same is None:
            found.append(Group((run,), own))
        else:
            found[same] = found[same].having(run)
    return found


def apart(group: Group, all_groups: Sequence[Group]) -> str:
    """The settings that tell a group from the others, as a reader would write them."""
    named = {name for other in all_groups for name in other.settings.keys() | group.settings.keys()}
    differing = sorted(
        name for name in named if len({str(other.settings.get(name)) for other in all_groups}) > 1
    )
    return ", ".join(f"{name} {group.settings.get(name, 'as usual')}" for name in differing)


def _varied(run: Run) -> tuple[object, ...]:
    return tuple(flat(run.config).get(name) for name in VARIED)


def _shared(run: Run) -> Flat:
    no_matter = (*VARIED, *HOW_IT_IS_COMPUTED, *CHOSEN_BY_THE_MACHINE)
    return {
        name: value
        for name, value in flat(run.config).items()
        if name not in no_matter and not name.startswith("gpu.")
    }


def table_rows(group: Group) -> tuple[list[Row], list[str]]:
    """The rows of the table, and what keeps runs out of it."""
    cells: dict[Cell, RunFolder] = {}
    left_out = [
        f"{run.name} repeats another run to the seed, and counts once" for run in group.repeats
    ]
    for run in _ordered(group.runs):
        cell = {Cell(run.config, run.name): run.folder}
        try:
            rows(cell)
        except (FedTinyError, LookupError, TypeError, ValueError) as error:
            left_out.append(f"{run.name} is not in the table: {error}")
        else:
            cells |= cell
    return rows(cells), left_out


def _ordered(runs: Sequence[Run]) -> list[Run]:
    """Finished runs, the densest first, methods in the order given."""
    return sorted((run for run in runs if run.finished), key=lambda run: -run.config.density)


def comparison_figures(group: Group) -> list[Figure]:
    """What can be drawn of several runs."""
    return [f for f in (accuracy_over_density(group), accuracies_by_round(group)) if f]


def accuracy_over_density(group: Group) -> Figure | None:
    """Accuracy of each method over density: lines through means, dots for single runs."""
    reached = _reached(group)
    series = [
        _series(method, number, by_density)
        for number, (method, by_density) in enumerate(reached.items())
        if by_density
    ]
    dense = [a for run in group.runs for a in [_accuracy(run)] if a and run.config.density == 1]
    if sum(len(one.points) for one in series) < 2:
        return None
    repeated = any(len(one.dots) > len(one.points) for one in series)
    seeds = " and each seed as a small dot" if repeated else ""
    level = f" Dashed: the dense model, {fmean(dense):.4f}." if dense else ""
    caption = f"Accuracy at the end over the target density, the mean over seeds{seeds}.{level}"
    drawn = over_densities(series, fmean(dense) if dense else None)
    return Figure("accuracy_over_density", "Accuracy over density", caption, drawn)


def _reached(group: Group) -> dict[str, dict[float, list[float]]]:
    """Accuracies by method and density, those of dense models apart."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in group.runs:
        accuracy = _accuracy(run)
        if accuracy is not None and run.config.density < 1:
            of_method = found.setdefault(run.config.method, {})
            of_method.setdefault(run.config.density, []).append(accuracy)
    return found


def _accuracy(run: Run) -> float | None:
    return number(run.result, "accuracy")


def _series(method: str, place: int, by_density: dict[float, list[float]]) -> Series:
    label = labels.value(method)
    means = tuple((density, fmean(by_density[density])) for density in sorted(by_density))
    dots = tuple((density, one) for density, every in by_density.items() for one in every)
    return Series(label, palette.series(label, place), means, dots=dots)


def accuracies_by_round(group: Group) -> Figure | None:
    """Learning curves, the mean over seeds; of many only those of the lowest density."""
    kinds: dict[tuple[str, float], list[Run]] = {}
    for run in group.runs:
        kinds.setdefault((run.config.method, run.config.density), []).append(run)
    lowest, many = min(density for _, density in kinds), len(kinds) > MAX_LINES
    if many:
        kinds = {kind: runs for kind, runs in kinds.items() if kind[1] in (lowest, 1.0)}
    shown = list(kinds.items())[:MAX_LINES]
    by_method = len({method for (method, _), _ in shown}) == len(shown)
    series = [_curve(kind, runs, place, by_method) for place, (kind, runs) in enumerate(shown)]
    series = [one for one in series if one.points]
    if len(series) < 2:
        return None
    caption = "Test accuracy after each round, the mean over seeds" + (
        f"; of the densities the lowest, {lowest:g}, and dense." if many else "."
    )
    drawn = over_rounds(series, bounds=(0.0, 1.0))
    return Figure("accuracies", "Accuracy by round", caption, drawn)


def _curve(kind: tuple[str, float], runs: Sequence[Run], place: int, by_method: bool) -> Series:
    """The mean over the runs of one method and density, in rounds that all of them measured."""
    curves = [dict(points_of(run, "accuracy")) for run in runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    points = tuple((round, fmean(curve[round] for curve in curves)) for round in rounds)
    label = labels.value(kind[0])
    colour = palette.series(label, place) if by_method else f"series{place % MAX_LINES}"
    return Series(f"{label} {kind[1]:g}", colour, points)
