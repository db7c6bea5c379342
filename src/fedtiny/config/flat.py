"""Configs as TOML files and as plain data: nested tables, or one table by names with dots."""

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedtiny.config.checks import check_value, choices_of
from fedtiny.config.settings import Config
from fedtiny.errors import ConfigError, did_you_mean
from fedtiny.files import parse_toml, read_file

T = TypeVar("T")
MAX_CONFIG = 1 << 20  # bytes of a config file
PROGRAMS = ("python", "program")  # settings of a device that start a program
Flat = dict[str, Any]
"""Settings by their full name, as in `pruning.delta_r`."""


def to_dict(config: Config) -> dict[str, Any]:
    """The config as plain data; a value of None is left out.

    Args:
        config: The settings.

    Returns:
        Nested dicts, as :func:`fedtiny.config.from_dict` takes them.

    Example:
        >>> fedtiny.config.to_dict(fedtiny.Config())["fleet"]["devices"]
        10
    """
    return asdict(config, dict_factory=lambda pairs: {k: v for k, v in pairs if v is not None})


def flat(config: Config) -> Flat:
    """Every setting that has a value, by its full name."""
    return joined(to_dict(config))


def joined(values: Mapping[str, Any], prefix: str = "") -> Flat:
    """Nested tables as one.

    >>> joined({"density": 0.1, "pruning": {"delta_r": 3}})
    {'density': 0.1, 'pruning.delta_r': 3}
    """
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


def load(path: Path, *, programs: bool = False) -> Config:
    """Read a TOML file; keys left out keep their defaults.

    Args:
        path: The file.
        programs: Whether the file may name a program to start, which the caller does not start.

    Returns:
        The settings.

    Raises:
        ConfigError: The file cannot be read, or a setting in it cannot work.

    Example:
        >>> from pathlib import Path
        >>> file = Path("my.toml")
        >>> _ = file.write_text("density = 0.02")
        >>> fedtiny.config.load(file)
        Config(density=0.02)
    """
    try:
        config = from_dict(parse_toml(read_file(path, MAX_CONFIG)))
    except FileNotFoundError as missing:
        raise ConfigError(f"there is no config file {path}") from missing
    except (OSError, ValueError, MemoryError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read config file {path}: {why}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not programs:
        refuse_program(config, str(path))
    return config


def refuse_program(config: Config, where: str) -> None:
    """Refuse settings out of a file that would start a program."""
    for name in PROGRAMS:
        if getattr(config.device, name) is not None:
            raise ConfigError(
                f"{where} names a program that would simulate the devices (device.{name}); "
                f"programs are taken from flags only: if you trust it, give it with --device.{name}"
            )


def dumps(config: Config) -> str:
    """The config as TOML; a value of None is left out.

    Args:
        config: The settings.

    Returns:
        The text of a file for :func:`fedtiny.config.load`.

    Example:
        >>> fedtiny.config.dumps(fedtiny.Config(density=0.02)).splitlines()[3]
        'density = 0.02'
    """
    import tomli_w

    return tomli_w.dumps(to_dict(config))


def from_dict(values: Mapping[str, Any]) -> Config:
    """A config from plain data.

    Args:
        values: Settings by name, those of a section in a dict of their own.

    Returns:
        The settings.

    Raises:
        ConfigError: An unknown key or a wrong value; the sentence says where.

    Example:
        >>> fedtiny.config.from_dict({"density": 0.02, "fleet": {"devices": 5}})
        Config(density=0.02, fleet=FleetConfig(devices=5))
    """
    return parse(Config, values)


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
