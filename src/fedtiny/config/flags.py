"""Sentences written with flags, as Python writes the same settings and arguments.

`fedtiny.errors.naming_flags` says which of both is meant.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from fedtiny.config.checks import Choices, choices_of

COMMAND = (
    r"(?:fedtiny (?:run|resume|inspect|export|predict|report|compare|reproduce|cost|bench|flower|"
    r"gateway|list|data|doctor)|flwr \w+|torchrun) [^;]*"
)
SENTENCE = re.compile(rf"{COMMAND}|(?<![\w-])--([a-z][\w.-]*\w)(?:([ =])([\w.]+\b))?")
ARGUMENTS: dict[str, Choices] = {
    **{"out": (str,), "seeds": (int,), "methods": (str,), "track": (str,)},
    **{"fold": (bool,), "plain": (bool,), "best": (bool,)},
    "format": ("packed", "onnx", "torch", "c", "cmake", "platformio", "zephyr"),
    "values": ("fp32", "fp16", "int8"),
}
"""Flags that are no settings of a run, but arguments of functions."""
NAMES = {"model": ("small", "cnn1d", "mlp"), "data.name": ("file", "folder")}
"""Values of settings that take any text, as far as sentences name them."""


def as_flag(name: str) -> str:
    """The flag of a setting.

    >>> as_flag("pruning.delta_r")
    '--pruning.delta-r'
    """
    return "--" + name.replace("_", "-")


def as_arguments(sentence: str) -> str:
    """The sentence with names of Python; commands in it stay as they are, but for `resume`.

    >>> as_arguments("--pruning.delta-r must be at least 1; use --workers 1 or --no-fold")
    'pruning.delta_r must be at least 1; use workers=1 or fold=False'
    >>> as_arguments("choose another --out, or: fedtiny run --density 0.1")
    'choose another out=, or: fedtiny run --density 0.1'
    >>> as_arguments("go on with: fedtiny resume 'my runs/a'")
    "go on with: fedtiny.resume('my runs/a')"
    """
    return SENTENCE.sub(_argument, sentence)


def _argument(found: re.Match[str]) -> str:
    if found[1] is None:
        return _call(found[0])
    name, between, value = found[1].replace("-", "_"), found[2] or "", found[3] or ""
    *sections, key = name.split(".")
    plain = ".".join([*sections, key.removeprefix("no_")])
    known = {**_settings(), **ARGUMENTS}
    if plain not in known:
        return found[0]
    if key.startswith("no_"):
        return f"{plain}=False{between}{value}"
    if _is_value(value, plain, known[plain]):
        return f"{plain}={value if value[0].isdigit() else repr(value)}"
    return f"{plain}{'=' if plain in ARGUMENTS else ''}{between}{value}"


def _call(command: str) -> str:
    """What continues a run, as a call; other commands are for a terminal."""
    parts = shlex.split(command) if command.startswith("fedtiny resume ") else []
    return f"fedtiny.resume({parts[2]!r})" if len(parts) == 3 else command


def _is_value(word: str, name: str, choices: Choices) -> bool:
    """Whether the word behind a flag is its value rather than the next of the sentence."""
    return word in choices or word in NAMES.get(name, ()) or word[:1].isdigit()


@cache
def _settings() -> dict[str, Choices]:
    """What each setting of a config may be, by its full name."""
    from fedtiny.config.settings import Config

    return dict(_declared(Config, ""))


def _declared(kind: Any, where: str) -> Iterator[tuple[str, Choices]]:
    for field in fields(kind):
        if is_dataclass(field.type):
            yield from _declared(field.type, f"{where}{field.name}.")
        else:
            yield where + field.name, choices_of(field.type)
