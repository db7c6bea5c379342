"""What a setting is where the user leaves it open."""

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

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


def resolve(config: Config) -> Config:
    """Fill in what was left open: the paper's setting, or a quick one for the digits.

    Where the number of rounds is given and r_stop is not, pruning ends by two thirds of the run.
    """
    filled = _filled(config, PRESETS.get(config.data.name, PAPER))
    if config.pruning.r_stop is not None:
        return filled
    latest = max(1, (filled.rounds or 1) * 2 // 3)
    r_stop = min(filled.pruning.r_stop or latest, latest)
    return replace(filled, pruning=replace(filled.pruning, r_stop=r_stop))


def _filled(node: T, preset: Mapping[str, Any]) -> T:
    changes = {}
    for name, value in preset.items():
        present = getattr(node, name)
        if is_dataclass(present):
            changes[name] = _filled(present, value)
        elif present is None:
            changes[name] = value
    return replace(node, **changes)  # type: ignore[type-var]
