"""Configs as plain data: nested tables, or one flat table by names with dots."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedtiny.config.aliases import current_settings
from fedtiny.config.settings import Config

Flat = dict[str, Any]
"""Settings by their full name, as in `pruning.delta_r`."""


def to_dict(config: Config) -> dict[str, Any]:
    """The config as plain data; a value of None is left out."""
    return asdict(config, dict_factory=lambda pairs: {k: v for k, v in pairs if v is not None})


def flat(config: Config) -> Flat:
    """Every setting that has a value, by its full name."""
    return joined(to_dict(config))


def flattened(values: Mapping[str, Any]) -> Flat:
    """Nested tables as one; a setting's name of before becomes today's.

    >>> flattened({"density": 0.1, "pruning": {"delta_r": 3}})
    {'density': 0.1, 'pruning.delta_r': 3}
    """
    return current_settings(joined(values))


def joined(values: Mapping[str, Any], prefix: str = "") -> Flat:
    """Nested tables as one, with names as they are."""
    found: Flat = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= joined(value, f"{prefix}{key}.")
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


def renamed(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Nested tables with today's names of settings."""
    before = joined(values)
    settings = current_settings(before)
    return values if settings == before else nested(settings)
