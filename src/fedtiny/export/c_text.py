"""Arrays, strings and comments as C text."""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ExportError

LINE = 100
TYPES = {
    **{name: f"{name}_t" for name in ("int8", "uint8", "uint16", "int32")},
    "float32": "float",
}


def array(name: str, values: NDArray[Any]) -> str:
    """A constant array.

    >>> import numpy as np
    >>> print(array("scales", np.array([1, 0.1], dtype=np.float32)), end="")
    static const float scales[2] = {
        1.0f, 0.1f,
    };
    """
    suffix = "f" if values.dtype.kind == "f" else ""
    text = " ".join(f"{number}{suffix}," for number in values.reshape(-1).astype(str).tolist())
    return (
        f"static const {TYPES[values.dtype.name]} {name}[{values.size}] = {{\n{_lines(text)}}};\n"
    )


def literal(number: float) -> str:
    """A float constant.

    >>> literal(1e-5), literal(6)
    ('1e-05f', '6.0f')
    """
    with np.errstate(over="ignore"):
        held = np.float32(number)
    if not np.isfinite(held):
        raise ExportError(f"the model has a step with the number {number}; it cannot be exported")
    return f"{held!s}f"


def _lines(text: str) -> str:
    """Text in indented lines; much faster for long tables than textwrap."""
    lines, start, most = [], 0, LINE - 4
    while len(text) - start > most:
        end = text.rindex(" ", start, start + most + 1)
        lines.append(text[start:end])
        start = end + 1
    lines.append(text[start:])
    return "".join(f"    {line}\n" for line in lines)


def string(text: str) -> str:
    r"""A string literal of UTF-8 bytes.

    >>> print(string('a "b"?'))
    "a \"b\"\?"
    """
    return '"' + "".join(_character(byte) for byte in text.encode()) + '"'


def _character(byte: int) -> str:
    character = chr(byte)
    if character in '"\\?':  # two question marks could begin a trigraph
        return f"\\{character}"
    return character if 32 <= byte < 127 else f"\\{byte:03o}"


def comment(lines: Iterable[str]) -> str:
    """A block comment of paragraphs; nothing in them can end it.

    >>> print(comment(["one */ two"]))
    /*
     * one * / two
     */
    """
    wrapped = []
    for line in lines:
        plain = line.encode("ascii", "replace").decode()
        apart = re.sub(r"\*(?=/)|/(?=\*)|\?(?=\?)", r"\g<0> ", plain)
        wrapped += textwrap.wrap(apart, LINE - 3, subsequent_indent="  ") or [""]
    return "\n".join(["/*", *(f" * {line}".rstrip() for line in wrapped), " */"])


NOTHING = "NULL"


@dataclass
class Declarations:
    """Constant tables as C text, and how many bytes they take."""

    lines: list[str] = field(default_factory=list)
    size: int = 0
    names: set[str] = field(default_factory=set)

    def array(self, name: str, values: NDArray[Any] | None) -> str:
        """Declare an array once, if there is something in it; gives what to call it."""
        if values is None or not values.size:
            return NOTHING
        if name in self.names:
            return name
        self.names.add(name)
        self.lines.append(array(name, values))
        self.size += values.nbytes
        return name
