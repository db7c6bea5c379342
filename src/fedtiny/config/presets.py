"""What a setting is if the user leaves it open."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar

from fedtiny.config.resolved import ResolvedConfig, RunConfig
from fedtiny.config.settings import Config

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


def resolve(config: Config) -> ResolvedConfig:
    """Fill in what was left open: the paper's setting, or a quick one for the digits.

    With a number of rounds and without r_stop, pruning ends by two thirds of the run.
    """
    preset = PRESETS.get(config.data.name, PAPER)
    rounds = preset["rounds"] if config.rounds is None else config.rounds
    r_stop = min(preset["pruning"]["r_stop"], max(1, rounds * 2 // 3))
    pruning = preset["pruning"] | {"r_stop": r_stop}
    return converted(ResolvedConfig, config, preset | {"pruning": pruning})


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


def converted(kind: type[T], settings: Any, open_values: Mapping[str, Any] | None = None) -> T:
    """Settings as another type of theirs, with values for what they leave open."""
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    for field in fields(kind):  # type: ignore[arg-type]
        value = values[field.name]
        filling = (open_values or {}).get(field.name)
        if is_dataclass(field.type):
            values[field.name] = converted(field.type, value, filling)  # type: ignore[arg-type]
        elif value is None:
            values[field.name] = filling
    return kind(**values)
