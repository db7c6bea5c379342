"""Reading TOML files of experiments, with errors that name the file and the nearest right word."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtiny.errors import ConfigError, did_you_mean
from fedtiny.files import parse_toml, read_file

KINDS = {str: "text", int: "a number", dict: "a table", list: "a list", bool: "true/false"}


def read(path: Path) -> dict[str, Any]:
    """A TOML file as plain data."""
    try:
        return parse_toml(read_file(path))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path}: {why}") from error


def hint(word: str, known: Iterable[str]) -> str:
    """The known words, and the one that was probably meant."""
    listed = list(known)
    return f"(known: {', '.join(listed)}){did_you_mean(word, listed)}"


def require_known(names: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Refuse a name that says nothing."""
    listed = list(known)
    for name in names:
        if name not in listed:
            raise ConfigError(f"{where}: unknown name '{name}' {hint(str(name), listed)}")


def require_kind(value: Any, where: str, *kinds: type) -> Any:
    """Refuse a value of the wrong kind."""
    if not isinstance(value, kinds):
        allowed = " or ".join(KINDS[kind] for kind in kinds)
        raise ConfigError(f"{where} must be {allowed}, got {value!r}")
    return value


def table(
    values: Any, kinds: Mapping[str, type], where: str, *, required: Iterable[str] = ()
) -> dict[str, Any]:
    """A table whose keys are known, each with a value of its kind."""
    require_known(require_kind(values, where, dict), kinds, where)
    for key in required:
        if key not in values:
            raise ConfigError(f"{where} lacks '{key}', which must be {KINDS[kinds[key]]}")
    return {key: require_kind(value, f"'{key}'", kinds[key]) for key, value in values.items()}
