"""Which runs a comparison is made of."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedtiny import config as configs
from fedtiny import methods
from fedtiny.config import Config
from fedtiny.errors import ConfigError

ALL = "all"
GRID_KEYS = ("methods", "density", "seeds")


@dataclass(frozen=True)
class Cell:
    """One run of a comparison, with the name of its run folder."""

    config: Config
    name: str


@dataclass(frozen=True)
class Grid:
    """Methods x densities x seeds over one base config."""

    methods: tuple[str, ...] = (ALL,)
    density: tuple[float, ...] = (0.05,)
    seeds: tuple[int, ...] = (0,)
    base: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        for name in GRID_KEYS:
            if not getattr(self, name):
                raise ConfigError(f"--{name} needs at least one value")
        plain = Config()
        for name in ("method", "seed", "memory_budget"):
            if getattr(self.base, name) != getattr(plain, name):
                raise ConfigError(
                    f"a comparison takes --methods, --density and --seeds, not '{name}'"
                )

    def cells(self) -> list[Cell]:
        """Every run, densities outermost; a method that stays dense runs once a seed."""
        found: dict[Cell, None] = {}
        for density in self.density:
            for method in self.method_names():
                for seed in self.seeds:
                    found[self._cell(method, density, seed)] = None
        return list(found)

    def method_names(self) -> tuple[str, ...]:
        """The methods, `all` spelled out; a wrong name is an error."""
        if ALL in self.methods:
            return tuple(methods.names())
        return tuple(methods.find(name).name for name in self.methods)

    def _cell(self, method: str, density: float, seed: int) -> Cell:
        density = 1.0 if methods.find(method).dense else density
        config = replace(self.base, method=method, density=density, seed=seed)
        return Cell(config, f"{method}-d{density:g}-s{seed}")


def load(path: Path) -> Grid:
    """A grid from a TOML file: `methods`, `density` and `seeds` are lists, the rest is a config."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    lists = {key: _list(path, key, values.pop(key)) for key in GRID_KEYS if key in values}
    try:
        return Grid(**lists, base=configs.from_dict(values))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


KINDS: Mapping[str, tuple[type, ...]] = {
    "methods": (str,),
    "density": (int, float),
    "seeds": (int,),
}


def _list(path: Path, key: str, values: Any) -> tuple[Any, ...]:
    items: Sequence[Any] = values if isinstance(values, list) else [values]
    if not items or not all(type(item) in KINDS[key] for item in items):
        raise ConfigError(f"{path}: '{key}' must be a list of {KINDS[key][-1].__name__}")
    return tuple(items)
