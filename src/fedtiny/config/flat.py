"""Settings as one flat table, by names with dots, and the way back."""

from collections.abc import Mapping
from typing import Any

from fedtiny.config.settings import Config
from fedtiny.config.toml import to_dict

Flat = dict[str, Any]
"""Settings by their full name, as in `pruning.delta_r`."""


def flat(config: Config) -> Flat:
    """Every setting that has a value, by its full name."""
    return flattened(to_dict(config))


def flattened(values: Mapping[str, Any], prefix: str = "") -> Flat:
    """Nested tables as one.

    >>> flattened({"density": 0.1, "pruning": {"delta_r": 3}})
    {'density': 0.1, 'pruning.delta_r': 3}
    """
    found: Flat = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The way back.

    >>> nested({"density": 0.1, "pruning.delta_r": 3})
    {'density': 0.1, 'pruning': {'delta_r': 3}}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, key = name.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    return found
