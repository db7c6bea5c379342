"""Paths and other text that a user gives: what a file system and a file can hold."""

from pathlib import Path

from fedtiny.errors import ConfigError, printable


def text_fault(text: str) -> str:
    r"""Why text can neither name a file nor be written to one; nothing if it can.

    >>> text_fault("a\0b"), text_fault("a\udcffb"), text_fault("caf\u00e9")
    ('it holds a NUL byte', 'it holds bytes that are not UTF-8', '')
    """
    if "\0" in text:
        return "it holds a NUL byte"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it holds bytes that are not UTF-8"
    return ""


def check_text(text: str, name: str) -> None:
    """Refuse text that no file can hold; `name` is that of the flag or variable."""
    if fault := text_fault(text):
        raise ConfigError(f"{name} '{printable(text)}' cannot be used: {fault}")


def user_path(path: str | Path, name: str) -> Path:
    """The path that a user gave under this name; `~` is a home folder."""
    check_text(str(path), name)
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{name} '{printable(str(path))}' begins with a home folder that is not known here; "
            "write the path in full"
        ) from error
