"""Reading TOML files of experiments, with errors that name the file and the nearest right word."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedtiny.errors import ConfigError, did_you_mean

KINDS = {str: "text", int: "a number", dict: "a table", list: "a list", bool: "true/false"}
Types = type | tuple[type, ...]


def read(path: Path) -> dict[str, Any]:
    """A TOML file as plain data."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def hint(word: str, known: Iterable[str]) -> str:
    """The known words, and the one that was probably meant."""
    listed = list(known)
    return f"(known: {', '.join(listed)}){did_you_mean(word, listed)}"


def require_known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse a name that says nothing."""
    listed = list(known)
    for name in names:
        if name not in listed:
            raise ConfigError(f"{where}: unknown key '{name}' {hint(name, listed)}")


def require_kind(value: Any, kind: Types, where: str) -> Any:
    """Refuse a value of the wrong kind."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join(KINDS.get(one, one.__name__) for one in kinds)
        raise ConfigError(f"{where} must be {wanted}, got {value!r}")
    return value


def texts(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(require_kind(one, str, where) for one in require_kind(value, list, where))


def table(values: Any, kinds: Mapping[str, Types], where: str, prefix: str = "") -> dict[str, Any]:
    """A table whose keys are known, each with a value of its kind."""
    require_known(require_kind(values, dict, where), kinds, where)
    return {
        key: require_kind(value, kinds[key], f"'{prefix}{key}'") for key, value in values.items()
    }
