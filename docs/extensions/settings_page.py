"""The reference of a run's settings, from the dataclasses and the words that stand in them."""

import dataclasses
import re

from sphinx.pycode import ModuleAnalyzer

from fedtiny.config import Config
from fedtiny.config.flat import joined
from fedtiny.config.presets import PAPER, PRESETS


def settings() -> str:
    """Markdown with a table for each section of a config."""
    return "\n".join([*_tables(Config, ""), *_presets()])


def _tables(section: type, prefix: str) -> list[str]:
    words = ModuleAnalyzer.for_module(section.__module__).find_attr_docs()
    plain: list[str] = []
    parts: list[str] = []
    for field in dataclasses.fields(section):
        inner = field.default_factory
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            parts += _tables(inner, f"{prefix}{field.name}.")
        else:
            plain.append(_row(section, field, prefix, words))
    heading = f"## [{prefix.rstrip('.')}]" if prefix else "## The run"
    about = (section.__doc__ or "").partition("\n")[0]
    head = ["| flag | values | default | what it does |", "|---|---|---|---|"]
    return [heading, "", about, "", *head, *plain, "", *parts]


def _row(
    section: type,
    field: "dataclasses.Field[object]",
    prefix: str,
    words: dict[tuple[str, str], list[str]],
) -> str:
    about = " ".join(words[section.__name__, field.name]).strip()
    cells = [
        f"`--{prefix}{field.name.replace('_', '-')}`",
        _values(str(field.type)),
        "open" if field.default is None else f"`{_default(field)}`",
        about,
    ]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(field: "dataclasses.Field[object]") -> str:
    value = field.default
    if value is dataclasses.MISSING and callable(field.default_factory):
        value = field.default_factory()
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _values(hint: str) -> str:
    """A type in plain words.

    >>> _values("typing.Literal['a', 'b'] | None")
    '`a`, `b`'
    >>> _values("<class 'float'>")
    'number'
    """
    options = re.findall(r"'(\w+)'", hint) if "Literal" in hint else []
    kinds = {"int": "whole number", "float": "number", "str": "text", "bool": "on, off"}
    outside = re.sub(r"Literal\[[^\]]*\]", "", hint)
    named = [word for kind, word in kinds.items() if re.search(rf"\b{kind}\b", outside)]
    return ", ".join([*named, *(f"`{option}`" for option in options)])


def _presets() -> list[str]:
    """What a setting is where it is left open."""
    columns = {"digits": PRESETS["digits"], "everything else": PAPER}
    flat = {name: joined(preset) for name, preset in columns.items()}
    names = list(dict.fromkeys(name for preset in flat.values() for name in preset))
    rows = [
        f"| `{name}` | {' | '.join(str(preset.get(name, '')) for preset in flat.values())} |"
        for name in names
    ]
    head = [f"| setting | {' | '.join(columns)} |", "|---|---|---|"]
    return ["## Presets", "", *head, *rows, "", f"SVHN has {PRESETS['svhn']['rounds']} rounds."]
