"""The config file that may stand before the flags of a command."""

from itertools import pairwise
from pathlib import Path

from fedtiny.errors import ConfigError


def taken_off(arguments: list[str]) -> tuple[Path | None, list[str]]:
    """The file, if one is named first, and the flags.

    >>> taken_off(["my.toml", "--density", "0.1"])
    (PosixPath('my.toml'), ['--density', '0.1'])
    >>> taken_off(["--density", "0.1"])
    (None, ['--density', '0.1'])
    """
    if arguments and not arguments[0].startswith("-"):
        return Path(arguments[0]), arguments[1:]
    for before, word in pairwise(arguments):
        if word.endswith(".toml") and not before.startswith("-"):
            raise ConfigError(f"name the config file before all flags: {word} {arguments[0]} ...")
    return None, arguments
