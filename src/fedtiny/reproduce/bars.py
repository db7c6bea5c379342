"""Drawing groups of bars: ours as bars, the paper's as hollow diamonds on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtiny.reproduce import style
from fedtiny.reproduce.outcome import Outcome
from fedtiny.reproduce.places import Place, along
from fedtiny.reproduce.quantities import QUANTITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUP = 0.84  # the share of the room that a full group takes
WIDE = 100  # times the smallest value
GAP = 0.08  # the share of a bar's room that is left free


@dataclass(frozen=True)
class Kind:
    """Bars of one colour: what they show, and the place of each group that has one."""

    label: str
    colour: str
    quantity: str
    members: dict[int, Place]


def draw_bars(
    outcome: Outcome, places: Sequence[Place], quantities: tuple[str, ...], axes: "Axes"
) -> None:
    """Bars side by side in a group for each value on the x axis."""
    groups = along(places, outcome.experiment.figure.x)
    kinds = _kinds(outcome, places, quantities)
    width = GROUP / len(kinds)
    for group in range(len(groups)):
        present = [kind for kind in kinds if group in kind.members]
        for number, kind in enumerate(present):
            position = group + (number - (len(present) - 1) / 2) * width
            _draw_bar(outcome, kind, group, axes, position, width)
    for kind in kinds:
        axes.bar(0, 0, color=kind.colour, label=kind.label)
    axes.scatter([], [], marker="D", s=24, fc="white", ec="black", label="paper")
    axes.set_xticks(range(len(groups)), [at.label for at in groups])
    axes.tick_params(axis="x", length=0)
    if quantities == ("accuracy",):
        axes.set_ylim(0, 1)
    elif _is_wide(outcome, kinds):
        axes.set_yscale("log")


def _kinds(outcome: Outcome, places: Sequence[Place], quantities: tuple[str, ...]) -> list[Kind]:
    """A kind for each value of the series' axis; without such an axis, for each quantity."""
    layout = outcome.experiment.figure
    groups = {at.value: number for number, at in enumerate(along(places, layout.x))}
    if layout.series is None:
        members = {groups[place.at[layout.x].value]: place for place in places}
        return [
            Kind(QUANTITIES[name].label, style.colour("", number), name, members)
            for number, name in enumerate(quantities)
        ]
    series, (quantity,) = layout.series, quantities
    kinds = []
    for number, at in enumerate(along(outcome.places, series)):
        own = [place for place in places if place.at[series].value == at.value]
        members = {groups[place.at[layout.x].value]: place for place in own}
        kinds.append(Kind(at.label, style.colour(at.label, number), quantity, members))
    return kinds


def _is_wide(outcome: Outcome, kinds: list[Kind]) -> bool:
    """Whether the values, ours and the paper's, lie too far apart to be seen side by side."""
    values = []
    for kind in kinds:
        for place in kind.members.values():
            ours = outcome.ours(place, kind.quantity)
            printed = outcome.printed(place, kind.quantity)
            values += [ours.mean] if ours else []
            values += [printed.number] if printed else []
    return bool(values) and max(values) > WIDE * min(values)


def _draw_bar(
    outcome: Outcome, kind: Kind, group: int, axes: "Axes", position: float, width: float
) -> None:
    place = kind.members[group]
    ours, printed = outcome.ours(place, kind.quantity), outcome.printed(place, kind.quantity)
    if ours is not None:
        error = ours.spread if ours.seeds > 1 else None
        axes.bar(position, ours.mean, (1 - GAP) * width, color=kind.colour, yerr=error, capsize=2)
    if printed is not None:
        axes.scatter(
            position, printed.number, marker="D", s=24, fc="white", ec=kind.colour, zorder=3
        )
