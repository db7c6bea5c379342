"""An experiment: which runs it is made of, and how they are shown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

from fedtiny.config.flat import Flat
from fedtiny.reproduce.quantities import QUANTITIES


@dataclass(frozen=True)
class Choice:
    """One value of an axis: the settings it stands for."""

    name: str
    settings: Flat
    label: str | None = None
    """For a named variant: how it is shown, with settings in braces."""


@dataclass(frozen=True)
class Axis:
    """A setting that varies, or named variants of several settings (`setting` is None)."""

    name: str
    setting: str | None
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class TableLayout:
    """Which axes go down and across, which figures are shown, among what the best is marked."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[str, ...]
    best_of: str | None


@dataclass(frozen=True)
class FigureLayout:
    """What is drawn over what; without series the several y are bars side by side."""

    kind: Literal["lines", "bars"]
    x: str
    y: tuple[str, ...]
    series: str | None
    panels: str | None


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    number: int
    title: str
    source: str
    notes: tuple[str, ...]
    trains: bool
    base: Flat
    axes: tuple[Axis, ...]
    order: Mapping[str, tuple[str, ...]]
    table: TableLayout
    figure: FigureLayout

    @property
    def quantities(self) -> tuple[str, ...]:
        """All that is shown of a run, in the table or in the figure."""
        shown = (*self.table.values, *self.figure.y)
        beside = (QUANTITIES[name].reference for name in shown)
        return tuple(dict.fromkeys([*shown, *(name for name in beside if name)]))

    def combinations(self) -> Iterator[dict[str, Choice]]:
        """Every choice of each axis, in the order in which they are to run."""
        by_name = {axis.name: axis for axis in self.axes}
        outermost = [*self.order, *(name for name in by_name if name not in self.order)]
        choices = [self._ordered(by_name[name]) for name in outermost]
        for chosen in product(*choices):
            yield dict(zip(outermost, chosen, strict=True))

    def _ordered(self, axis: Axis) -> list[Choice]:
        first = self.order.get(axis.name, ())
        place = {name: number for number, name in enumerate(first)}
        return sorted(axis.choices, key=lambda choice: place.get(choice.name, len(place)))
