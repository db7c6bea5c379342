"""Reading the suite's TOML files, with errors that name the file and the nearest right word."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fedtiny
from fedtiny.errors import ConfigError

PACKAGE = Path(fedtiny.__file__).parent
PLACES = (PACKAGE / "experiments", PACKAGE.parents[1] / "experiments")
"""In an installed package, and in a checkout."""


def shipped() -> Path:
    """The folder of the paper's experiments."""
    for place in PLACES:
        if (place / "scales.toml").is_file():
            return place
    raise ConfigError(f"the experiments are missing; expected them in {PLACES[0]}")


def read(path: Path) -> dict[str, Any]:
    """A TOML file as plain data."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def hint(word: str, known: Iterable[str]) -> str:
    """The known words, and the one that was probably meant."""
    listed = list(known)
    near = difflib.get_close_matches(word, listed, n=1)
    guess = f"; did you mean '{near[0]}'?" if near else ""
    return f"(known: {', '.join(listed)}){guess}"


def require_known(values: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Refuse a key that says nothing."""
    listed = list(known)
    for key in values:
        if key not in listed:
            raise ConfigError(f"{where}: unknown key '{key}' {hint(key, listed)}")


def require_kind(value: Any, kind: type | tuple[type, ...], where: str) -> Any:
    """Refuse a value of the wrong kind."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        words = {str: "text", int: "a number", dict: "a table", list: "a list", bool: "true/false"}
        wanted = " or ".join(words.get(one, one.__name__) for one in kinds)
        raise ConfigError(f"{where} must be {wanted}, got {value!r}")
    return value
