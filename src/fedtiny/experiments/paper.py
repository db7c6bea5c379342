"""The paper's own values, by the run that they are of."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtiny.config.flat import flattened
from fedtiny.errors import ConfigError
from fedtiny.experiments import reading
from fedtiny.experiments.quantities import QUANTITIES
from fedtiny.experiments.scale import Scale


@dataclass(frozen=True)
class Printed:
    """A value that the paper prints, and where."""

    source: str
    number: float
    text: str


@dataclass(frozen=True)
class Paper:
    """What the paper prints of each run; one run may stand in several tables."""

    printed: Mapping[tuple[str, str], tuple[Printed, ...]]

    def value(self, twin: str, quantity: str, source: str) -> Printed | None:
        """A run's value: the one in this table, else in any other."""
        found = self.printed.get((twin, quantity), ())
        own = [value for value in found if value.source == source]
        return next(iter((*own, *found)), None)


NO_PAPER = Paper({})


def load(path: Path, scale: Scale) -> Paper:
    """Read every printed table; runs are named as the scale of the paper names them."""
    printed: dict[tuple[str, str], tuple[Printed, ...]] = {}
    for source, table in reading.read(path).get("printed", {}).items():
        where = f"{path}: {source}"
        reading.require_known(table, ("where", "columns", "rows"), where)
        for row in table["rows"]:
            twin, values = _row(table, row, scale, where)
            for quantity, value in values.items():
                text = QUANTITIES[quantity].text(value)
                known = printed.get((twin, quantity), ())
                printed[twin, quantity] = (*known, Printed(source, float(value), text))
    return Paper(printed)


def _row(
    table: Mapping[str, Any], row: list[Any], scale: Scale, where: str
) -> tuple[str, dict[str, Any]]:
    """The run that a row is of, and its values."""
    if len(row) != len(table["columns"]):
        raise ConfigError(f"{where}: {row} does not have {len(table['columns'])} columns")
    settings = flattened(table.get("where", {}))
    values = dict(zip(table["columns"], row, strict=True))
    settings |= {name: value for name, value in values.items() if name not in QUANTITIES}
    twin = scale.stem(scale.config(settings))
    return twin, {name: value for name, value in values.items() if name in QUANTITIES}
