"""All experiments, scales and the paper's values together."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtiny import extras
from fedtiny.errors import ConfigError
from fedtiny.experiments import experiment, paper, reading, scale
from fedtiny.experiments.experiment import Experiment
from fedtiny.experiments.paper import Paper
from fedtiny.experiments.places import Place, places
from fedtiny.experiments.scale import PAPER, Scale

ALL = "all"
SCALES_FILE = "scales.toml"
PAPER_FILE = "paper.toml"


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
        values = paper.load(_file(own, PAPER_FILE), scales[PAPER])
        return cls(tuple(experiments), scales, values)

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
