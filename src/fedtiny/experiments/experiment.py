"""An experiment: which runs it is made of and how they are shown, read from its TOML file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fedtiny.config.flat import Flat, flattened
from fedtiny.errors import ConfigError
from fedtiny.experiments import reading
from fedtiny.experiments.quantities import QUANTITIES
from fedtiny.experiments.reading import require_kind, require_known
from fedtiny.experiments.scale import BEST_POOL

REQUIRED = {"number": int, "title": str, "source": str, "axes": dict, "table": dict, "figure": dict}
KEYS = {**REQUIRED, "notes": list, "trains": bool, "base": dict, "order": dict}
TABLE_KEYS = {"rows": list, "columns": list, "values": list, "best_of": str}
FIGURE_KEYS = {"kind": str, "x": str, "y": list, "series": str, "panels": str}
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
    try:
        return _parsed(path.stem, reading.read(path))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if str(path) in text else f"{path}: {text}") from error


def _parsed(name: str, document: Mapping[str, Any]) -> Experiment:
    values = reading.table(document, KEYS, "the experiment")
    for key, kind in REQUIRED.items():
        require_kind(values.get(key), kind, f"'{key}'")
    axes = tuple(_axis(axis, value) for axis, value in values["axes"].items())
    known = [axis.name for axis in axes]
    found = Experiment(
        name=name,
        **{key: values[key] for key in ("number", "title", "source")},
        notes=reading.texts(values.get("notes", []), "'notes'"),
        trains=values.get("trains", True),
        base=flattened(values.get("base", {})),
        axes=axes,
        order=_order(values.get("order", {}), axes),
        table=_table(values["table"], known),
        figure=_figure(values["figure"], known),
    )
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
    require_kind(values, (list, dict), f"axis '{name}'")
    if not values:
        raise ConfigError(f"axis '{name}' has no value")
    if isinstance(values, list):
        setting = SETTING.get(name, name)
        return Axis(name, setting, tuple(Choice(str(v), {setting: v}) for v in values))
    return Axis(name, None, tuple(_variant(name, *item) for item in values.items()))


def _variant(axis: str, name: str, values: Any) -> Choice:
    require_kind(values, dict, f"variant '{name}' of axis '{axis}'")
    settings = flattened({key: value for key, value in values.items() if key != "label"})
    return Choice(name, settings, values.get("label", name))


def _order(values: Mapping[str, Any], axes: tuple[Axis, ...]) -> dict[str, tuple[str, ...]]:
    known = {axis.name: [choice.name for choice in axis.choices] for axis in axes}
    require_known(values, known, "'order'")
    order = {}
    for axis, listed in values.items():
        order[axis] = tuple(str(value) for value in require_kind(listed, list, f"order.{axis}"))
        require_known(order[axis], known[axis], f"'order.{axis}'")
    return order


def _table(given: Any, axes: Sequence[str]) -> TableLayout:
    values = reading.table(given, TABLE_KEYS, "'table'", "table.")
    rows, columns = (
        tuple(_one(name, axes, f"table.{key}") for name in values.get(key, []))
        for key in ("rows", "columns")
    )
    best_of = _one(values["best_of"], axes, "table.best_of") if "best_of" in values else None
    return TableLayout(rows, columns, _quantities(values.get("values"), "table.values"), best_of)


def _figure(given: Any, axes: Sequence[str]) -> FigureLayout:
    values = reading.table(given, FIGURE_KEYS, "'figure'", "figure.")
    kind, x = values.get("kind"), require_kind(values.get("x"), str, "'figure.x'")
    if kind not in ("lines", "bars"):
        raise ConfigError(f"'figure.kind' must be lines or bars, got {kind!r}")
    named = {
        key: _one(values[key], axes, f"figure.{key}")
        for key in ("series", "panels")
        if key in values
    }
    y = _quantities(values.get("y"), "figure.y")
    return FigureLayout(kind, _one(x, axes, "figure.x"), y, **named)


def _one(name: Any, axes: Sequence[str], where: str) -> str:
    """The name of an axis."""
    if name not in axes:
        raise ConfigError(f"'{where}' names no axis: '{name}' {reading.hint(str(name), axes)}")
    return str(name)


def _quantities(values: Any, where: str) -> tuple[str, ...]:
    names = reading.texts(values, f"'{where}'")
    require_known(names, QUANTITIES, f"'{where}'")
    return names
