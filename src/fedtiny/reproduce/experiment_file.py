"""Reading an experiment from its TOML file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtiny.config.flat import flattened
from fedtiny.errors import ConfigError
from fedtiny.reproduce import reading
from fedtiny.reproduce.experiment import Axis, Choice, Experiment, FigureLayout, TableLayout
from fedtiny.reproduce.quantities import QUANTITIES
from fedtiny.reproduce.scale import BEST_POOL

KEYS = ("number", "title", "source", "notes", "trains", "base", "axes", "order", "table", "figure")
SETTING = {"data": "data.name"}
"""Axes whose name is shorter than that of the setting."""


def load(path: Path) -> Experiment:
    """Read an experiment; what is wrong is named with the file."""
    try:
        return _parsed(path.stem, reading.read(path))
    except ConfigError as error:
        text = str(error)
        raise ConfigError(text if str(path) in text else f"{path}: {text}") from error


def _parsed(name: str, values: Mapping[str, Any]) -> Experiment:
    reading.require_known(values, KEYS, "the experiment")
    for key, kind in (("number", int), ("title", str), ("source", str), ("axes", dict)):
        reading.require_kind(values.get(key), kind, f"'{key}'")
    axes = tuple(_axis(axis, value) for axis, value in values["axes"].items())
    found = Experiment(
        name=name,
        number=values["number"],
        title=values["title"],
        source=values["source"],
        notes=_texts(values.get("notes", []), "'notes'"),
        trains=reading.require_kind(values.get("trains", True), bool, "'trains'"),
        base=flattened(reading.require_kind(values.get("base", {}), dict, "'base'")),
        axes=axes,
        order=_order(values.get("order", {}), axes),
        table=_table(values.get("table"), axes),
        figure=_figure(values.get("figure"), axes),
    )
    for ok, complaint in _demands(found):
        if not ok:
            raise ConfigError(complaint)
    return found


def _demands(found: Experiment) -> list[tuple[bool, str]]:
    """What must hold between the parts of an experiment, with what is wrong where it does not."""
    table, figure = found.table, found.figure
    axes = {axis.name: axis for axis in found.axes}
    several = {name for name, axis in axes.items() if len(axis.choices) > 1}
    drawn = {figure.x, figure.series, figure.panels}
    trained = "accuracy" in table.values or "accuracy" in figure.y
    return [
        (
            sorted((*table.rows, *table.columns)) == sorted(axes),
            "'table' must name every axis once, in rows or columns",
        ),
        (
            not table.columns or (len(table.columns), len(table.values)) == (1, 1),
            "a table with 'columns' has one axis there, and one value",
        ),
        (
            table.best_of is None or "accuracy" in table.values,
            "'table.best_of' needs accuracy among the values",
        ),
        (found.trains or not trained, "without training there is no accuracy"),
        (several <= drawn, "'figure' must name every axis that has several values"),
        (
            figure.kind == "bars" or figure.series is not None,
            "a figure of lines needs 'series'",
        ),
        (
            figure.panels is None or len(figure.y) == 1,
            "a figure with 'panels' has one y",
        ),
        (
            figure.kind == "bars" or _is_numbers(axes[figure.x]),
            f"a figure of lines needs numbers on its x axis, not '{figure.x}'",
        ),
    ]


def _is_numbers(axis: Axis) -> bool:
    values = [value for choice in axis.choices for value in choice.settings.values()]
    return axis.setting is not None and all(
        isinstance(value, int | float) or str(value).endswith(BEST_POOL) for value in values
    )


def _axis(name: str, values: Any) -> Axis:
    reading.require_kind(values, (list, dict), f"axis '{name}'")
    if not values:
        raise ConfigError(f"axis '{name}' has no value")
    if isinstance(values, list):
        setting = SETTING.get(name, name)
        return Axis(name, setting, tuple(Choice(str(v), {setting: v}) for v in values))
    return Axis(name, None, tuple(_variant(name, *item) for item in values.items()))


def _variant(axis: str, name: str, values: Any) -> Choice:
    reading.require_kind(values, dict, f"variant '{name}' of axis '{axis}'")
    settings = flattened({key: value for key, value in values.items() if key != "label"})
    return Choice(name, settings, values.get("label", name))


def _order(values: Mapping[str, Any], axes: tuple[Axis, ...]) -> dict[str, tuple[str, ...]]:
    known = {axis.name: [choice.name for choice in axis.choices] for axis in axes}
    reading.require_known(reading.require_kind(values, dict, "'order'"), known, "'order'")
    order = {}
    for axis, listed in values.items():
        names = tuple(str(value) for value in reading.require_kind(listed, list, f"order.{axis}"))
        reading.require_known(dict.fromkeys(names), known[axis], f"'order.{axis}'")
        order[axis] = names
    return order


def _table(values: Any, axes: tuple[Axis, ...]) -> TableLayout:
    reading.require_kind(values, dict, "'table'")
    reading.require_known(values, ("rows", "columns", "values", "best_of"), "'table'")
    rows, columns = (_axes(values.get(key, []), axes, key) for key in ("rows", "columns"))
    return TableLayout(
        rows,
        columns,
        _quantities(values.get("values"), "table.values"),
        _one(values.get("best_of"), axes, "table.best_of"),
    )


def _figure(values: Any, axes: tuple[Axis, ...]) -> FigureLayout:
    reading.require_kind(values, dict, "'figure'")
    reading.require_known(values, ("kind", "x", "y", "series", "panels"), "'figure'")
    kind = values.get("kind")
    if kind not in ("lines", "bars"):
        raise ConfigError(f"'figure.kind' must be lines or bars, got {kind!r}")
    x = _one(reading.require_kind(values.get("x"), str, "'figure.x'"), axes, "figure.x")
    series, panels = (_one(values.get(key), axes, f"figure.{key}") for key in ("series", "panels"))
    return FigureLayout(kind, x or "", _quantities(values.get("y"), "figure.y"), series, panels)


def _axes(values: Any, axes: tuple[Axis, ...], where: str) -> tuple[str, ...]:
    names = _texts(values, f"'table.{where}'")
    return tuple(_one(name, axes, f"table.{where}") or "" for name in names)


def _one(name: str | None, axes: tuple[Axis, ...], where: str) -> str | None:
    known = [axis.name for axis in axes]
    if name is not None and name not in known:
        raise ConfigError(f"'{where}' names no axis: '{name}' {reading.hint(name, known)}")
    return name


def _quantities(values: Any, where: str) -> tuple[str, ...]:
    names = _texts(values, f"'{where}'")
    reading.require_known(dict.fromkeys(names), QUANTITIES, f"'{where}'")
    return names


def _texts(values: Any, where: str) -> tuple[str, ...]:
    listed = reading.require_kind(values, list, where)
    return tuple(reading.require_kind(value, str, where) for value in listed)
