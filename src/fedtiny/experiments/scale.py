"""How large an experiment is run: the settings of every run, and what stands in for the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtiny import config as configs
from fedtiny import methods
from fedtiny.config import Config
from fedtiny.config.flat import Flat, flat, joined, nested
from fedtiny.config.presets import recipe_of
from fedtiny.errors import ConfigError
from fedtiny.experiments import reading

PAPER = "paper"
POOL = "selection.pool_size"
BEST_POOL = " C*"  # "2.5 C*" is a pool of 2.5 x 0.1 / density candidates
DENSITY_OF_BEST_POOL = 0.1
NAMED_APART = ("method", "data.name", "model", "density", "recipe", "seed")
UNDEFENDED: Flat = {"robustness.bound": 0.0, "robustness.reject": 0.0}
"""Experiments measure the method: no defense bounds or repeats what honest devices do."""


@dataclass(frozen=True)
class Scale:
    """`settings` are shared by all runs; `instead` replaces a setting's value of the paper's."""

    name: str
    title: str
    settings: Flat
    instead: Mapping[str, Mapping[str, Any]]

    def config(self, settings: Flat) -> Config:
        """A run that the paper would make with these settings, as this scale makes it."""
        found: Flat = {}
        for name, value in settings.items():
            other = self.instead.get(name, {}).get(str(value), value)
            found |= other if isinstance(other, dict) else {name: other}
        return self._built(found)

    def _built(self, settings: Flat) -> Config:
        every = UNDEFENDED | self.settings | settings
        if methods.find(every.get("method", Config.method)).dense:
            every["density"] = 1.0
        every[POOL] = _pool(every)
        values = {name: value for name, value in every.items() if value is not None}
        config = configs.from_dict(nested(values))
        configs.refuse_program(config, "an experiment")
        return configs.resolve(config)

    def stem(self, config: Config) -> str:
        """A name by content: what is run, and all that differs from the scale's own settings."""
        settings = flat(config)
        usual = flat(self._built({name: settings[name] for name in NAMED_APART}))
        parts = [config.method, config.data.name, config.model, f"d{config.density:g}"]
        parts += [config.recipe] * (config.recipe != recipe_of(config.method)["recipe"])
        for name, value in sorted(settings.items()):
            if usual.get(name) != value:
                text = f"{value:g}" if isinstance(value, float) else value
                parts.append(f"{_short(name)}={text}")
        parts += [f"no-{_short(name)}" for name in sorted(usual.keys() - settings.keys())]
        return "-".join(parts)


AS_IT_IS = Scale("", "", {}, {})


def load(path: Path) -> dict[str, Scale]:
    """Every scale of a file; what is wrong is named with the file."""
    scales = {}
    for name, values in reading.read(path).items():
        try:
            scales[name] = _parsed(name, values)
            scales[name].config({})
        except ConfigError as error:
            raise ConfigError(f"{path}: scale '{name}': {error}") from error
    return scales


def _parsed(name: str, table: Any) -> Scale:
    values = reading.table(table, {"title": str, "config": dict, "instead": dict}, "the scale")
    instead = values.get("instead", {})
    for setting, pairs in instead.items():
        reading.require_kind(pairs, f"'instead.{setting}'", dict)
    return Scale(name, values.get("title", name), joined(values.get("config", {})), instead)


def _pool(settings: Flat) -> Any:
    """The number of candidates, also if it is given as a multiple of C* = 0.1 / density."""
    size = settings.get(POOL)
    if not isinstance(size, str) or not size.endswith(BEST_POOL):
        return size
    best = DENSITY_OF_BEST_POOL / settings["density"]
    try:
        return max(1, round(float(size.removesuffix(BEST_POOL)) * best))
    except ValueError as error:
        raise ConfigError(f"'{POOL}' must be a number or, say, '2.5 C*', got '{size}'") from error


def _short(name: str) -> str:
    """The last part of a setting's name if it names only one setting."""
    last = name.rpartition(".")[2]
    return name if last in ("batch_size", "kind", "name") else last
