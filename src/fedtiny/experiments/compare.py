"""An experiment of your own: methods x densities x seeds over one base config."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedtiny import config as configs
from fedtiny import methods
from fedtiny.config import Config, resolve
from fedtiny.config.flat import Flat, flat, joined, nested
from fedtiny.config.presets import RECIPES
from fedtiny.cost.workload import method_of
from fedtiny.errors import ConfigError
from fedtiny.experiments import finished, reading
from fedtiny.experiments.experiment import Axis, Experiment, FigureLayout, TableLayout
from fedtiny.experiments.places import Cell, Coordinate, Place
from fedtiny.experiments.results import Results
from fedtiny.experiments.scale import UNDEFENDED
from fedtiny.runs.formatting import not_gone_by, without_budgets

ALL = "all"
GRID_KEYS = {"methods": (str,), "density": (int, float), "seeds": (int,)}
EQUAL: Flat = {"recipe": "paper", "pruning.budgets": "uniform", **UNDEFENDED}
"""The terms of every method, unless others are asked for."""
SCHEDULE = ("train.local_epochs", "train.batch_size", "train.pretrain_epochs")
"""Settings of training that no recipe is about."""
SHOWN = (
    *("accuracy", "flops_share", "memory", "bytes_round", "selection_bytes"),
    *("selection_rounds", "server_passes"),
)
IN_FULL = (
    *("accuracy", "flops", "flops_ratio", "flops_plain", "memory", "bytes_round"),
    *("selection_bytes", "selection_flops", "selection_rounds"),
    *("pretraining_passes", "server_passes"),
)
COMPARISON = Experiment(
    "compare",
    "Comparison",
    (Axis("density", "density"), Axis("method", "method")),
    TableLayout(
        *(("density", "method"), SHOWN), best_of="method", beside=("recipe", "budgets"), spare=4
    ),
    FigureLayout("lines", "density", ("accuracy",), "method"),
)


@dataclass(frozen=True)
class Grid:
    """The runs of a comparison."""

    methods: tuple[str, ...] = (ALL,)
    density: tuple[float, ...] = (0.05,)
    seeds: tuple[int, ...] = (0,)
    base: Config = field(default_factory=lambda: equal({}))

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

    def unequal(self) -> list[str]:
        """Which methods cannot have the layer budgets that all others have, each in a line."""
        asked = self.base.pruning.budgets
        sparse = [place.config for place in self.places() if place.at["budgets"].value != "-"]
        found = {config.method: without_budgets(config) for config in sparse}
        return [
            f"on other terms: {name} {why} (not --pruning.budgets {asked})"
            for name, why in found.items()
            if why and asked == "uniform"  # for others a line says that they have no effect
        ]

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
            "recipe": _word(_recipe(config)),
            "budgets": _word(_budgets(config)),
        }
        found.setdefault(stem, Place(stem, config, config, stem, at))
    return list(found.values())


def _word(text: str) -> Coordinate:
    return Coordinate(text, text, 0)


def _recipe(config: Config) -> str:
    """The recipe that a run trains by; its own, changed, if there is none of its settings."""
    own, asked = _training(config), resolve(config).recipe
    for name in (asked, *RECIPES):
        usual = Config(method=config.method, data=config.data, recipe=name)  # type: ignore[arg-type]
        if own == _training(usual):
            return name
    return f"{asked}, changed"


def _training(config: Config) -> Flat:
    """What a recipe is about, as far as the method goes by it."""
    settings, parts = flat(resolve(config)), ("train.", "server.", "pruning.gradient_epsilon")
    ignored = {*SCHEDULE, *not_gone_by(config)}
    return {
        name: v for name, v in settings.items() if name.startswith(parts) and name not in ignored
    }


def _budgets(config: Config) -> str:
    """How a run shares its weights out over layers."""
    method = method_of(resolve(config))
    if method.global_threshold or not method.budgets:
        return "global" if method.global_threshold else "-"
    asked = method.config.pruning.budgets
    return asked if asked in method.budgets else "own"


def equal(values: Mapping[str, Any]) -> Config:
    """A config of such keys, on equal terms where they say nothing.

    A file has no way to leave budgets open: with the recipes of the methods it has their budgets.
    """
    told = joined(values)
    terms = EQUAL if told.get("recipe") != "own" else UNDEFENDED
    return configs.from_dict(nested(terms | told))


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
        base = equal(values)
        configs.refuse_program(base, "it")
        return Grid(**lists, base=base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
