"""Small plain data as JSON text: the program of a request, the metrics of a reply, names."""

import json
import math
from collections.abc import Mapping
from typing import Any

from fedtiny.errors import WireError
from fedtiny.federation.verbs import Program, Verb, typed
from fedtiny.federation.wire.reader import Reader
from fedtiny.federation.wire.writer import Writer, write_numbers

MAX_TEXT_BYTES = 1 << 18
MAX_NAME_BYTES = 255


def write_order(out: Writer, action: str, method: str, program: Program) -> None:
    """What a request asks to be done."""
    verbs = [[checked_name(verb.name), dict(verb.options)] for verb in program]
    _write_json(out, [checked_name(action), checked_name(method), verbs])


def read_order(reader: Reader) -> tuple[str, str, Program]:
    """Action, method and program of a request."""
    match _read_json(reader, _finite):
        case [action, method, list() as verbs]:
            return checked_name(action), checked_name(method), tuple(map(_verb, verbs))
    raise WireError("a request needs an action, a method and a program")


def write_metrics(out: Writer, metrics: Mapping[str, float]) -> None:
    """Single numbers by name; they may be infinite or not a number."""
    plain = {checked_name(name): float(value) for name, value in metrics.items()}
    _write_json(out, plain, allow_nan=True)


def read_metrics(reader: Reader) -> dict[str, float]:
    """Single numbers by name."""
    metrics = _read_json(reader, float)
    if not isinstance(metrics, dict) or not all(type(v) is float for v in metrics.values()):
        raise WireError("metrics must be numbers by name")
    return {checked_name(name): value for name, value in metrics.items()}


def write_name(out: Writer, name: str) -> None:
    """A short text."""
    text = checked_name(name).encode()
    write_numbers(out, "<B", len(text))
    out.raw(text)


def read_name(reader: Reader) -> str:
    """A short text."""
    (length,) = reader.numbers("<B", "a name")
    return checked_name(_decoded(reader.take(length, "a name")))


def checked_name(name: object) -> str:
    """A name that can be shown to people as it is."""
    if isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= MAX_NAME_BYTES:
        return name
    raise WireError(f"a name needs 1 to {MAX_NAME_BYTES} printable bytes, not {ascii(name)[:60]}")


def _verb(value: object) -> Verb:
    match value:
        case [name, dict() as options]:
            try:
                return typed(Verb(checked_name(name), options))
            except ValueError as error:
                raise WireError(str(error)) from error
    raise WireError("a verb of a program needs a name and options")


def _write_json(out: Writer, value: object, allow_nan: bool = False) -> None:
    try:
        text = json.dumps(value, allow_nan=allow_nan, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"a message carries plain finite JSON only: {error}") from error
    if len(text) > MAX_TEXT_BYTES:
        raise WireError(f"{len(text)} bytes of JSON are more than the {MAX_TEXT_BYTES} allowed")
    write_numbers(out, "<I", len(text))
    out.raw(text)


def _read_json(reader: Reader, number: Any) -> Any:
    (length,) = reader.numbers("<I", "its text")
    if length > MAX_TEXT_BYTES:
        raise WireError(f"the message claims {length} bytes of text; {MAX_TEXT_BYTES} are allowed")
    text = _decoded(reader.take(length, "its text"))
    try:
        return json.loads(text, parse_float=number, parse_constant=number, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the text of the message is not plain JSON: {error}") from error


def _decoded(text: memoryview) -> str:
    try:
        return str(text, "utf-8")
    except UnicodeDecodeError as error:
        raise WireError(f"the message holds text that is not UTF-8: {error.reason}") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise WireError(f"options must be finite numbers, not {text[:30]}")
    return value


def _integer(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise WireError(f"the whole number {text[:30]} is too large")
    return value
