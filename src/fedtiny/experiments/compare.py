"""An experiment of your own: methods x densities x seeds over one base config."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedtiny import config as configs
from fedtiny import methods
from fedtiny.config import Config
from fedtiny.errors import ConfigError
from fedtiny.experiments import finished, reading
from fedtiny.experiments.experiment import Axis, Experiment, FigureLayout, TableLayout
from fedtiny.experiments.places import Cell, Coordinate, Place
from fedtiny.experiments.results import Results

ALL = "all"
GRID_KEYS = {"methods": (str,), "density": (int, float), "seeds": (int,)}
SHOWN = ("accuracy", "flops_share", "memory", "bytes_round", "selection_bytes")
IN_FULL = ("accuracy", "flops", "flops_ratio", "memory", "bytes_round", "selection_bytes")
COMPARISON = Experiment(
    "compare",
    "Comparison",
    (Axis("density", "density"), Axis("method", "method")),
    TableLayout(("density", "method"), SHOWN, best_of="method"),
    FigureLayout("lines", "density", ("accuracy",), "method"),
)


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison."""

    methods: tuple[str, ...] = (ALL,)
    density: tuple[float, ...] = (0.05,)
    seeds: tuple[int, ...] = (0,)
    base: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        for name in GRID_KEYS:
            if not getattr(self, name):
                raise ConfigError(f"--{name} needs at least one value")
        plain = Config()
        for name in ("method", "seed", "memory_budget", "flops_budget"):
            if getattr(self.base, name) != getattr(plain, name):
                raise ConfigError(
                    f"a comparison takes --methods, --density and --seeds, not '{name}'"
                )

    def cells(self) -> list[Cell]:
        """Every run, densities outermost; a method that stays dense runs once a seed."""
        seeds = dict.fromkeys(self.seeds)
        return [place.cell(seed) for place in self.places() for seed in seeds]

    def places(self) -> list[Place]:
        """Every method at every density."""
        pairs = ((density, name) for density in self.density for name in self.method_names())
        return places(
            replace(self.base, method=name, density=1.0 if methods.find(name).dense else density)
            for density, name in pairs
        )

    def method_names(self) -> tuple[str, ...]:
        """The methods, `all` spelled out; a wrong name is an error."""
        if ALL in self.methods:
            return tuple(methods.names())
        return tuple(methods.find(name).name for name in self.methods)

    def results(self, folder: Path, left_out: Container[str] = ()) -> Results:
        """All that is finished of it, without the cells of these names."""
        seed = self.seeds[0]
        shown = [place for place in self.places() if place.cell(seed).name not in left_out]
        found, damaged = finished.in_folders(shown, folder, self.seeds)
        return Results(COMPARISON, shown, found, damaged=damaged)


def places(runs: Iterable[Config]) -> list[Place]:
    """Each method and density once, in the order given but for dense ones, which come first."""
    found: dict[str, Place] = {}
    densities: dict[float, int] = {1.0: -1}
    names: dict[str, int] = {}
    for config in runs:
        method, density = config.method, config.density
        stem = f"{method}-d{density:g}"
        at = {
            "density": Coordinate(
                density, f"{density:g}", densities.setdefault(density, len(densities))
            ),
            "method": Coordinate(method, method, names.setdefault(method, len(names))),
        }
        found.setdefault(stem, Place(stem, config, config, stem, at))
    return list(found.values())


def load(path: Path) -> Grid:
    """A grid from a TOML file: `methods`, `density` and `seeds` are lists, the rest is a config."""
    values = reading.read(path)
    try:
        lists: dict[str, Any] = {}
        for key, kinds in GRID_KEYS.items():
            if key in values:
                found = values.pop(key)
                lists[key] = tuple(found) if isinstance(found, list) else (found,)
                if not lists[key] or not all(type(item) in kinds for item in lists[key]):
                    raise ConfigError(f"'{key}' must be a list of {kinds[-1].__name__}")
        base = configs.from_dict(values)
        configs.refuse_program(base, "it")
        return Grid(**lists, base=base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
