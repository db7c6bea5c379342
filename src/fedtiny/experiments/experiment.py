"""An experiment: which runs it is made of and how they are shown, read from its TOML file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fedtiny.config.flat import Flat, joined
from fedtiny.errors import ConfigError
from fedtiny.experiments import reading
from fedtiny.experiments.quantities import QUANTITIES
from fedtiny.experiments.reading import require_kind, require_known
from fedtiny.experiments.scale import BEST_POOL

REQUIRED = {"number": int, "title": str, "source": str, "axes": dict, "table": dict, "figure": dict}
KEYS = {**REQUIRED, "notes": list, "trains": bool, "base": dict, "order": dict, "pareto": dict}
TABLE_KEYS = {"rows": list, "values": list, "columns": list, "best_of": str}
FIGURE_KEYS = {"kind": str, "x": str, "y": list, "series": str, "panels": str}
NAMES = {"kind": ("lines", "bars"), "values": QUANTITIES, "y": QUANTITIES}
"""What the names in a layout are of, if not of axes."""
SETTING = {"data": "data.name"}
"""Axes whose name is shorter than that of the setting."""


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
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class TableLayout:
    """Which axes go down and across, which figures are shown, among what the best is marked.

    `beside` is told of every row next to its axes. So many of the last `values` are `spare`: a
    terminal without room leaves them out.
    """

    rows: tuple[str, ...]
    values: tuple[str, ...]
    columns: tuple[str, ...] = ()
    best_of: str | None = None
    beside: tuple[str, ...] = ()
    spare: int = 0


@dataclass(frozen=True)
class FigureLayout:
    """What is drawn over what; without series the several y are bars side by side."""

    kind: Literal["lines", "bars"]
    x: str
    y: tuple[str, ...]
    series: str | None = None
    panels: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or a comparison of your own."""

    name: str
    title: str
    axes: tuple[Axis, ...]
    table: TableLayout
    figure: FigureLayout
    number: int = 0
    source: str = ""
    notes: tuple[str, ...] = ()
    trains: bool = True
    base: Flat = field(default_factory=dict)
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pareto: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Lines of accuracy over cost, each through these values of `line_axis`; without any, a line
    for each value."""

    @property
    def line_axis(self) -> str:
        """The axis whose values have a color each."""
        return self.table.best_of or self.figure.series or self.axes[-1].name

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


def load(path: Path) -> Experiment:
    """Read an experiment; what is wrong is named with the file."""
    document = reading.read(path)
    try:
        return _parsed(path.stem, document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _parsed(name: str, document: Mapping[str, Any]) -> Experiment:
    values = reading.table(document, KEYS, "the experiment", required=REQUIRED)
    axes = tuple(_axis(axis, value) for axis, value in values["axes"].items())
    names = [axis.name for axis in axes]
    table = _layout(values["table"], TABLE_KEYS, names, "table", ("rows", "values"))
    figure = _layout(values["figure"], FIGURE_KEYS, names, "figure", ("kind", "x", "y"))
    pareto = values.get("pareto", {})
    parts = {
        "notes": tuple(map(str, values.get("notes", ()))),
        "base": joined(values.get("base", {})),
        "axes": axes,
        "order": _order(values.get("order", {}), axes),
        "table": TableLayout(**table),
        "figure": FigureLayout(**figure),
        "pareto": {line: _names(runs, f"pareto.{line}") for line, runs in pareto.items()},
    }
    found = Experiment(name, **values | parts)
    _require_choices(found)
    for ok, complaint in _demands(found):
        if not ok:
            raise ConfigError(complaint)
    return found


def _demands(found: Experiment) -> list[tuple[bool, str]]:
    """What must hold between the parts of an experiment, with what is wrong if it does not."""
    table, figure = found.table, found.figure
    axes = {axis.name: axis for axis in found.axes}
    several = {name for name, axis in axes.items() if len(axis.choices) > 1}
    drawn = {figure.x, figure.series, figure.panels}
    trained = "accuracy" in (*table.values, *figure.y)
    every = sorted((*table.rows, *table.columns)) == sorted(axes)
    single = not table.columns or (len(table.columns), len(table.values)) == (1, 1)
    ranked = table.best_of is None or "accuracy" in table.values
    named = figure.kind == "bars" or figure.series is not None
    one_y = figure.panels is None or len(figure.y) == 1
    numbers = figure.kind == "bars" or _is_numbers(axes[figure.x])
    return [
        (every, "'table' must name every axis once, in rows or columns"),
        (single, "a table with 'columns' has one axis there, and one value"),
        (ranked, "'table.best_of' needs accuracy among the values"),
        (found.trains or not trained, "without training there is no accuracy"),
        (several <= drawn, "'figure' must name every axis that has several values"),
        (named, "a figure of lines needs 'series'"),
        (one_y, "a figure with 'panels' has one y"),
        (numbers, f"a figure of lines needs numbers on its x axis, not '{figure.x}'"),
    ]


def _is_numbers(axis: Axis) -> bool:
    values = [value for choice in axis.choices for value in choice.settings.values()]
    return axis.setting is not None and all(
        isinstance(value, int | float) or str(value).endswith(BEST_POOL) for value in values
    )


def _axis(name: str, values: Any) -> Axis:
    if not require_kind(values, f"axis '{name}'", list, dict):
        raise ConfigError(f"axis '{name}' has no value")
    if isinstance(values, list):
        setting = SETTING.get(name, name)
        return Axis(name, setting, tuple(Choice(str(v), {setting: v}) for v in values))
    variants = []
    for variant, table in values.items():
        settings = dict(require_kind(table, f"variant '{variant}' of axis '{name}'", dict))
        label = settings.pop("label", variant)
        variants.append(Choice(variant, joined(settings), label))
    return Axis(name, None, tuple(variants))


def _order(values: Mapping[str, Any], axes: tuple[Axis, ...]) -> dict[str, tuple[str, ...]]:
    known = {axis.name: [choice.name for choice in axis.choices] for axis in axes}
    require_known(values, known, "'order'")
    order = {}
    for axis, listed in values.items():
        order[axis] = _names(listed, f"order.{axis}")
        require_known(order[axis], known[axis], f"'order.{axis}'")
    return order


def _names(listed: Any, where: str) -> tuple[str, ...]:
    return tuple(map(str, require_kind(listed, where, list)))


def _require_choices(found: Experiment) -> None:
    """Refuse lines of accuracy over cost through what is on no axis."""
    (known,) = ([c.name for c in a.choices] for a in found.axes if a.name == found.line_axis)
    for line, runs in found.pareto.items():
        require_known(runs, known, f"'pareto.{line}'")


def _layout(
    table: Any, kinds: Mapping[str, type], axes: Sequence[str], where: str, required: Sequence[str]
) -> dict[str, Any]:
    """How something is shown: in names of axes, quantities and kinds."""
    found = reading.table(table, kinds, f"'{where}'", required=required)
    for key, value in found.items():
        names = value if isinstance(value, list) else [value]
        require_known(names, NAMES.get(key, axes), f"'{where}.{key}'")
    return {key: tuple(v) if isinstance(v, list) else v for key, v in found.items()}
