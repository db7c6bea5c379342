"""Everything that can be reproduced: experiments, scales and the values that the paper prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtiny import shipped
from fedtiny.config.flat import flattened
from fedtiny.errors import ConfigError
from fedtiny.experiments import experiment, reading, scale
from fedtiny.experiments.experiment import Experiment
from fedtiny.experiments.places import Place, places
from fedtiny.experiments.quantities import QUANTITIES
from fedtiny.experiments.scale import PAPER, Scale

ALL = "all"
SCALES_FILE = "scales.toml"
PAPER_FILE = "paper.toml"


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


@dataclass(frozen=True)
class Suite:
    """Everything that can be reproduced."""

    experiments: tuple[Experiment, ...]
    scales: dict[str, Scale]
    paper: Paper

    @classmethod
    def load(cls, folder: Path | None = None) -> "Suite":
        """Read a folder of experiments; scales and values that it lacks are the paper's own."""
        own = folder or shipped_folder()
        files = [path for path in own.glob("*.toml") if path.name not in (SCALES_FILE, PAPER_FILE)]
        if not files:
            raise ConfigError(f"there are no experiments in {own}")
        experiments = sorted(map(experiment.load, sorted(files)), key=lambda e: e.number)
        scales = scale.load(_file(own, SCALES_FILE))
        if PAPER not in scales:
            scales = scale.load(shipped_folder() / SCALES_FILE) | scales
        return cls(tuple(experiments), scales, load_paper(_file(own, PAPER_FILE), scales[PAPER]))

    def find(self, names: Sequence[str]) -> list[Experiment]:
        """Experiments by name or by place in the paper, each once; `all` is all of them."""
        places = {_squeezed(e.source): e for e in self.experiments}
        known = places | {e.name: e for e in self.experiments}
        found: dict[str, Experiment] = {}
        for name in names:
            key = name if name in known else _squeezed(name)
            if name != ALL and key not in known:
                listed = [ALL, *(e.name for e in self.experiments)]
                raise ConfigError(f"there is no experiment '{name}' {reading.hint(name, listed)}")
            asked = self.experiments if name == ALL else (known[key],)
            found |= {experiment.name: experiment for experiment in asked}
        return list(found.values())

    def scale(self, name: str) -> Scale:
        """The scale of that name."""
        if name not in self.scales:
            raise ConfigError(f"there is no scale '{name}' {reading.hint(name, self.scales)}")
        return self.scales[name]

    def places(self, experiment: Experiment, at: Scale) -> list[Place]:
        """The runs of an experiment at a scale."""
        return places(experiment, at, self.scales[PAPER])


def shipped_folder() -> Path:
    """The folder of the paper's experiments."""
    return shipped.folder("experiments", SCALES_FILE)


def _squeezed(place: str) -> str:
    """`Figure 3` as it is typed: `figure3`."""
    return place.lower().replace(" ", "")


def _file(folder: Path, name: str) -> Path:
    own = folder / name
    return own if own.is_file() else shipped_folder() / name


def load_paper(path: Path, scale: Scale) -> Paper:
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
