"""Whether a value is what its setting is declared to be."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from textwrap import shorten
from typing import Any, get_args

from fedtiny.errors import ConfigError

FROM_DICT = "fedtiny.config.from_dict makes a config of plain dicts"
Choices = tuple[Any, ...]
"""The types and literal values that a setting allows."""


def check_types(settings: Any, where: str = "") -> None:
    """Refuse settings that hold what they cannot hold; `where` comes before their names."""
    for name, choices in _declared(settings.__class__):
        value = getattr(settings, name)
        if is_dataclass(choices[0]):
            _check_section(choices[0], value, f"{where}{name}")
        elif type(value) not in choices:
            check_value(choices, value, f"{where}{name}")


def _check_section(kind: Any, value: Any, where: str) -> None:
    if not isinstance(value, kind):
        hint = "; " + FROM_DICT if isinstance(value, Mapping) else ""
        raise ConfigError(f"'{where}' must be a {kind.__name__}, got {_shown(value)}{hint}")
    check_types(value, f"{where}.")


def check_value(choices: Choices, value: Any, where: str) -> None:
    """Refuse what is none of the choices; a whole number may stand for a real one."""
    if not any(_is(value, choice) for choice in choices):
        named = [choice for choice in choices if choice is not type(None)]
        allowed = " or ".join(c.__name__ if isinstance(c, type) else repr(c) for c in named)
        raise ConfigError(f"'{where}' must be {allowed}, got {_shown(value)}")


def _is(value: Any, choice: Any) -> bool:
    if not isinstance(choice, type):
        return isinstance(value, type(choice)) and bool(value == choice)
    if isinstance(value, bool):
        return choice is bool
    return isinstance(value, int | float if choice is float else choice)


@cache
def _declared(kind: type) -> tuple[tuple[str, Choices], ...]:
    return tuple((field.name, choices_of(field.type)) for field in fields(kind))


def choices_of(kind: Any) -> Choices:
    """What an annotation allows."""
    members = get_args(kind)
    return tuple(c for member in members for c in choices_of(member)) if members else (kind,)


def _shown(value: Any) -> str:
    return shorten(repr(value), 60, placeholder=" ...")
