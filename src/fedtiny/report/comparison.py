"""Several runs side by side: which may be compared, their table, and accuracy over density."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from fedtiny.config import Config
from fedtiny.config.flat import Flat, flat, joined
from fedtiny.config.presets import recipe_of
from fedtiny.drawing import palette
from fedtiny.drawing.figure import Figure
from fedtiny.errors import FedTinyError
from fedtiny.experiments import compare, figure, finished
from fedtiny.experiments.quantities import Numbers, label
from fedtiny.experiments.results import Results
from fedtiny.report.run import Run
from fedtiny.runs.metrics import number

VARIED = ("method", "density", "seed")
CHANGE_NOTHING = ("eval_devices", "checkpoint_every", "save_best")
"""Settings that change what is measured or kept of a run, and not how it trains."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in method, density and seed alone."""

    settings: Flat
    runs: list[Run] = field(default_factory=list)
    repeats: list[Run] = field(default_factory=list)
    """Runs that another one of the group is already, to the seed: they count once."""


def groups(runs: Sequence[Run]) -> list[Group]:
    """Runs that may stand in one table, together; finished ones are preferred to repeats."""
    found: list[Group] = []
    for run in sorted(runs, key=lambda run: not run.finished):
        settings = _shared(run)
        group = next((other for other in found if other.settings == settings), Group(settings))
        if not group.runs:
            found.append(group)
        known = [_varied(other) for other in group.runs]
        (group.repeats if _varied(run) in known else group.runs).append(run)
    return found


def apart(group: Group, all_groups: Sequence[Group]) -> str:
    """The settings that tell a group from the others, as a reader would write them."""
    return ", ".join(
        f"{name} {group.settings.get(name, 'as usual')}" for name in _differing(all_groups)
    )


def unusual(group: Group, all_groups: Sequence[Group]) -> str:
    """Those of these settings that are not as usual."""
    usual, own = flat(Config()) | joined(recipe_of("")), group.settings
    named = (name for name in _differing(all_groups) if own.get(name) != usual.get(name))
    return ", ".join(f"{name} {own[name]}" for name in named if name in own)


def _differing(groups: Sequence[Group]) -> list[str]:
    named = {name for group in groups for name in group.settings}
    return sorted(name for name in named if len({str(g.settings.get(name)) for g in groups}) > 1)


def _varied(run: Run) -> tuple[object, ...]:
    return tuple(flat(run.config).get(name) for name in VARIED)


def _shared(run: Run) -> Flat:
    no_matter = (*VARIED, *CHANGE_NOTHING, *finished.CHOSEN_BY_THE_MACHINE)
    return {
        name: value
        for name, value in finished.settings_of(run.config).items()
        if name not in no_matter and not name.startswith("gpu.")
    }


def table_results(group: Group) -> tuple[Results, list[str]]:
    """The finished runs side by side, and what keeps others out of the table."""
    measured: list[tuple[Run, Numbers]] = []
    left_out = [
        f"{run.name} repeats another run to the seed, and counts once" for run in group.repeats
    ]
    for run in ordered(group.runs):
        try:
            measured.append((run, finished.measure(run.config, run.folder)))
        except (FedTinyError, LookupError, TypeError, ValueError) as error:
            left_out.append(f"{run.name} is not in the table: {error}")
    return side_by_side(measured), left_out


def side_by_side(runs: Sequence[tuple[Run, Numbers]]) -> Results:
    """Runs with what is known of them, by method and density."""
    found: finished.Found = {}
    for run, numbers in runs:
        (place,) = compare.places([run.config])
        own = finished.Finished(run.name, run.config.seed, {}, numbers)
        found.setdefault(place.stem, []).append(own)
    places = compare.places(run.config for run, _ in runs)
    return Results(compare.COMPARISON, places, found)


def ordered(runs: Sequence[Run]) -> list[Run]:
    """Finished runs, the densest first, methods in the order given."""
    return sorted((run for run in runs if run.finished), key=lambda run: -run.config.density)


def look(runs: Sequence[Run], method: str) -> tuple[str, str]:
    """The color and the marker of a method, the same in all figures of these runs."""
    rest = (run for run in runs if not run.finished)
    order = list(dict.fromkeys(run.config.method for run in (*ordered(runs), *rest)))
    place = order.index(method)
    return palette.method(label(method)), palette.form(label(method), place)


def accuracy_over_density(group: Group) -> Figure | None:
    """Accuracy of each method over density: lines through means over seeds."""
    reached = ((run, number(run.result, "accuracy")) for run in ordered(group.runs))
    results = side_by_side([(run, {"accuracy": a}) for run, a in reached if a is not None])
    dense = [place for place in results.places if place.dense]
    if len(results.places) - len(dense) < 2:
        return None
    values = [value for place in dense if (value := results.ours(place, "accuracy"))]
    several = any(len(runs) > 1 for runs in results.found.values())
    seeds = " with their standard deviation" if several else ""
    level = f" Dashed: dense, {fmean(value.mean for value in values):.4f}." if values else ""
    caption = f"Accuracy at the end over the target density, the mean over seeds{seeds}.{level}"
    drawn = figure.draw(results, alone=False)
    return Figure("accuracy_over_density", "Accuracy over density", caption, drawn)
