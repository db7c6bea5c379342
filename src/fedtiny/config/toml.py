"""Configs as TOML files and as plain data."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedtiny.config.flat import renamed, to_dict
from fedtiny.config.settings import Config
from fedtiny.config.types import check_value, choices_of
from fedtiny.errors import ConfigError, did_you_mean

T = TypeVar("T")


def load(path: Path) -> Config:
    """Read a TOML file; keys left out keep their defaults."""
    try:
        return from_dict(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as missing:
        raise ConfigError(f"there is no config file {path}") from missing
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read config file {path}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def dumps(config: Config) -> str:
    """The config as TOML; a value of None is left out."""
    import tomli_w

    return tomli_w.dumps(to_dict(config))


def from_dict(values: Mapping[str, Any]) -> Config:
    """A config from plain data; an unknown key or a wrong type is an error that says where.

    Names that settings had before are understood too.
    """
    return parse(Config, renamed(values))


def parse(kind: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """A section of settings from plain data; `where` is what its keys are called before a dot."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    parsed: dict[str, Any] = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            hint = did_you_mean(name, known, prefix=where)
            raise ConfigError(f"unknown key '{where}{key}'{hint}")
        parsed[name] = _parse_value(known[name].type, value, f"{where}{name}")
    return kind(**parsed)


def _parse_value(kind: Any, value: Any, where: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise ConfigError(f"'{where}' is a table of settings, not a single value")
        return parse(kind, value, f"{where}.")  # type: ignore[arg-type]
    choices = choices_of(kind)
    check_value(choices, value, where)
    return float(value) if type(value) is int and float in choices else value
