"""Configs in which nothing is left open that a computation needs, and what fills them in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from math import floor
from typing import Any, Literal, TypeVar

from fedtiny.config.settings import (
    Config,
    PruningConfig,
    SelectionConfig,
    ServerConfig,
    TrainConfig,
)
from fedtiny.errors import ConfigError

T = TypeVar("T")

PAPER: dict[str, Any] = {
    "rounds": 300,
    "train": {"local_epochs": 5, "batch_size": 64},
    "selection": {"pool_size": 50},
    "pruning": {"delta_r": 10, "r_stop": 100},
}
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {
        "width": 16,
        "rounds": 16,
        "train": {"local_epochs": 3, "batch_size": 32},
        "selection": {"pool_size": 10},
        "pruning": {"delta_r": 1, "r_stop": 10},
    },
    "svhn": PAPER | {"rounds": 200},
}
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {
        "train": {"optimizer": "adam", "lr_schedule": "constant"},
        "server": {"optimizer": "fedavg", "beta1": 0.9},
        "pruning": {"gradient_epsilon": 0.0},
    },
    "momentum": {
        "train": {"optimizer": "sgd", "lr_schedule": "cosine"},
        "server": {"optimizer": "fedavgm", "beta1": 0.7},
        "pruning": {"gradient_epsilon": 0.01},
    },
}
"""What a method trains with, by the name that `recipe` gives it."""
USUAL: dict[str, Any] = {
    "recipe": "paper",
    "selection": {"kind": "adaptive_bn"},
    "pruning": {"budgets": "uniform", "flow_floor": 0.0, "rescale": 0.0},
}
"""What the paper gives every method, whatever the data."""
OF_METHODS: dict[str, dict[str, Any]] = {
    "fedtiny_flow": {
        "recipe": "momentum",
        "selection": {"kind": "none"},
        "pruning": {"budgets": "flow", "flow_floor": 1.0, "rescale": "auto"},
    },
}
"""Methods that have other settings of their own."""
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
FLOPS_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([kmg]i?)?b?", re.IGNORECASE)
_FLOPS = re.compile(r"(\d+(?:\.\d*)?(?:e\+?\d+)?|\.\d+)\s*(%|[kmgt]?)(?:flops)?", re.IGNORECASE)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ResolvedTrain(TrainConfig):
    """Local training; a rate left open is the optimizer's own, whichever that is."""

    local_epochs: int
    batch_size: int
    optimizer: Literal["adam", "sgd"]
    lr_schedule: Literal["constant", "cosine", "steps"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ResolvedServer(ServerConfig):
    """The server's optimizer; a rate left open is its own."""

    optimizer: Literal["fedavg", "fedavgm", "fedadam", "fedyogi"]
    beta1: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ResolvedSelection(SelectionConfig):
    """Coarse pruning."""

    kind: Literal["adaptive_bn", "vanilla", "none"]
    pool_size: int | Literal["auto"]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ResolvedPruning(PruningConfig):
    """Progressive pruning."""

    delta_r: int
    r_stop: int
    budgets: Literal["uniform", "erk", "flow", "global"]
    flow_floor: float
    rescale: float | Literal["auto"]
    gradient_epsilon: float


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ResolvedConfig(Config):
    """A config with the presets of data set and method: what methods and costs go by."""

    recipe: Literal["paper", "momentum"]
    rounds: int
    train: ResolvedTrain
    server: ResolvedServer
    selection: ResolvedSelection
    pruning: ResolvedPruning


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RunConfig(ResolvedConfig):
    """A resolved config of which it is also settled who computes: what a run goes by."""

    simulator: Literal["reference", "gpu"]
    workers: int
    threads: int

    @property
    def plans_memory(self) -> bool:
        """Whether a budget is met by how devices compute, rather than by the density."""
        native = self.device_backend != "torch" and self.simulator != "gpu"
        return native and self.memory_budget is not None and self.memory_model == "device"

    @property
    def device_budget(self) -> int:
        """Most bytes that a native device may take; 0 is no limit."""
        return parse_size(self.memory_budget) if self.memory_budget and self.plans_memory else 0


def recipe_of(method: str, recipe: str = "own") -> dict[str, Any]:
    """Return what a method trains with where nothing else is asked for, under a recipe."""
    settings = USUAL | OF_METHODS.get(method, {})
    name = settings["recipe"] if recipe == "own" else recipe
    sections = RECIPES[name]
    pruning = settings["pruning"] | sections["pruning"]
    return settings | sections | {"recipe": name, "pruning": pruning}


def resolve(config: Config) -> ResolvedConfig:
    """Fill in what was left open: the paper's setting, one for the digits, the method's own.

    With a number of rounds and without r_stop, pruning ends by two thirds of the run, or by the
    share of it that is asked for.
    """
    preset = PRESETS.get(config.data.name, PAPER)
    rounds = preset["rounds"] if config.rounds is None else config.rounds
    share = config.pruning.stop_share
    r_stop = min(preset["pruning"]["r_stop"], max(1, rounds * 2 // 3))
    if share is not None:
        r_stop = max(1, floor(share * rounds + 1e-9))
    preset = preset | {"pruning": preset["pruning"] | {"r_stop": r_stop}}
    recipe = recipe_of(config.method, config.recipe)
    config = replace(config, recipe=recipe.pop("recipe"))
    sections = {name: preset.get(name, {}) | values for name, values in recipe.items()}
    return _filled(ResolvedConfig, config, preset | sections)


def resolve_run(
    config: Config,
    *,
    simulator: Literal["reference", "gpu"] = "reference",
    workers: int = 1,
    threads: int = 1,
) -> RunConfig:
    """The same, with who computes."""
    values = vars(resolve(config)) | {"simulator": simulator}
    return RunConfig(**values | {"workers": workers, "threads": threads})


def _filled(kind: type[T], settings: Any, preset: Mapping[str, Any]) -> T:
    """Settings as their resolved type, with the preset's values for what they leave open."""
    values = dict(vars(settings))
    for declared in fields(kind):  # type: ignore[arg-type]
        name, value = declared.name, preset.get(declared.name)
        if is_dataclass(declared.type):
            values[name] = _filled(declared.type, values[name], value or {})  # type: ignore[arg-type]
        elif values[name] is None:
            values[name] = value
    return kind(**values)


def parse_size(text: str) -> int:
    """A number of bytes; units are powers of a thousand, or of 1024 with an i.

    Args:
        text: A number and a unit.

    Returns:
        The number of bytes.

    Raises:
        ConfigError: This is no size.

    Example:
        >>> [parse_size(text) for text in ("3MB", "500 kB", "1.5GB", "64", "1KiB")]
        [3000000, 500000, 1500000000, 64, 1024]
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * UNITS[(match[2] or "").lower()]) if match else 0
    if size < 1:
        raise ConfigError(f"'{text}' is not a size; write for example 3MB, 500kB or 1.5GB")
    return size


def parse_flops(text: str, dense: int) -> int:
    """A number of FLOPs, or the share of the dense network's that a percentage names.

    >>> [parse_flops(text, 5000) for text in ("2%", "1.5e12", "3 GFLOPs", "640")]
    [100, 1500000000000, 3000000000, 640]
    """
    match = _FLOPS.fullmatch(text.strip())
    number, unit = (float(match[1]), match[2].lower()) if match else (0.0, "")
    flops = number / 100 * dense if unit == "%" else number * FLOPS_UNITS[unit]
    if not 1 <= flops < 2**63:
        raise ConfigError(
            f"'{text}' is no budget of FLOPs; write a share of the dense network's, as 2%, or "
            "FLOPs of a round, as 1.5e12 or 40G"
        )
    return int(flops)
