"""Names of settings that have changed: the one table of what is still accepted, and as what."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from fedtiny.errors import ConfigError

RENAMED = {
    "trust": "robustness",
    "robustness.most_samples": "robustness.max_samples",
    "fleet.late_rate": "fleet.straggler_rate",
    "pruning.scope": "pruning.budgets",
}
"""Settings and tables of settings, old and new; each is looked up after those before it."""

OLD_MARK, CUSTOM = "own:", "custom:"
"""Before the name of a model or a data set that came through the Python interface."""

MARKED = ("model", "data.name")
_warned: set[str] = set()


def current(name: str) -> str:
    """What a setting is called now, by its full name.

    >>> current("trust.most_samples"), current("fleet.late-rate"), current("fleet.devices")
    ('robustness.max_samples', 'fleet.straggler_rate', 'fleet.devices')
    """
    before = today = name.replace("-", "_")
    for old, new in RENAMED.items():
        if today == old or today.startswith(f"{old}."):
            today = new + today.removeprefix(old)
    return name if today == before else today


def current_settings(settings: Mapping[str, Any], *, warns: bool = True) -> dict[str, Any]:
    """Settings by their full names, with today's names and marks."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        new = current(name)
        if new != name and new in {*found, *settings}:
            raise ConfigError(f"'{name}' is called '{new}' now; leave one of the two out")
        if name in MARKED and isinstance(value, str) and value.startswith(OLD_MARK):
            value = CUSTOM + value.removeprefix(OLD_MARK)
        found[new] = value
    if warns:
        warn({name: current(name) for name in settings})
    return found


def current_flags(arguments: Iterable[str]) -> list[str]:
    """The arguments of a command, with today's flags.

    >>> current_flags(["--fleet.straggler-rate=0.1", "--seed", "3"])
    ['--fleet.straggler-rate=0.1', '--seed', '3']
    """
    flags = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--")
        if flag.startswith("--") and current(name) != name:
            new = f"--{current(name).replace('_', '-')}"
            warn({flag: new})
            argument = f"{new}{equals}{value}"
        flags.append(argument)
    return flags


def warn(names: Mapping[str, str]) -> None:
    """Say on the error stream which names have changed, each once in a process."""
    changed = dict(_shortened(old, new) for old, new in names.items() if old != new)
    listed = [f"{old} is now {new}" for old, new in changed.items() if old not in _warned]
    _warned.update(changed)
    if listed:
        print(f"fedtiny: names of settings have changed: {', '.join(listed)}", file=sys.stderr)


def _shortened(old: str, new: str) -> tuple[str, str]:
    """The names of the tables alone, if it is only them that differ."""
    (old_table, _, old_key), (new_table, _, new_key) = old.rpartition("."), new.rpartition(".")
    return (old_table, new_table) if old_key == new_key else (old, new)
