"""Everything that can be reproduced: experiments, scales and the values that the paper prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtiny import extras
from fedtiny.config.flat import joined
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


Paper = Mapping[tuple[str, str], Sequence[Printed]]
"""What the paper prints of each run, by its name and a quantity; several tables may tell it."""


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
    return extras.shipped_folder("experiments", SCALES_FILE)


def _squeezed(place: str) -> str:
    """`Figure 3` as it is typed: `figure3`."""
    return place.lower().replace(" ", "")


def _file(folder: Path, name: str) -> Path:
    own = folder / name
    return own if own.is_file() else shipped_folder() / name


def printed(paper: Paper, twin: str, quantity: str, source: str) -> Printed | None:
    """A run's value: the one in this table, else in any other."""
    found = paper.get((twin, quantity), ())
    own = (value for value in found if value.source == source)
    return next(own, next(iter(found), None))


def load_paper(path: Path, scale: Scale) -> Paper:
    """Read every printed table; runs are named as the scale of the paper names them."""
    found: dict[tuple[str, str], list[Printed]] = {}
    for source, table in reading.read(path).get("printed", {}).items():
        where, columns = f"{path}: {source}", table["columns"]
        reading.require_known(table, ("where", "columns", "rows"), where)
        for row in table["rows"]:
            if len(row) != len(columns):
                raise ConfigError(f"{where}: {row} does not have {len(columns)} columns")
            values = dict(zip(columns, row, strict=True))
            settings = {name: value for name, value in values.items() if name not in QUANTITIES}
            twin = scale.stem(scale.config(joined(table.get("where", {})) | settings))
            for name in values.keys() - settings.keys():
                value = Printed(source, float(values[name]), QUANTITIES[name].text(values[name]))
                found.setdefault((twin, name), []).append(value)
    return found
