"""The steps of a network as plain records of a packed file, and back from ones that may lie."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from fedtiny.errors import ModelError
from fedtiny.export.network import described
from fedtiny.graph.ir import Graph, Kind, Node

MAX_NAME = 200
MAX_COUNT = 1 << 31
ONLY_TRAINING = ("momentum", "probability")


def to_records(graph: Graph) -> list[dict[str, Any]]:
    """Every step as its kind and what differs from the usual."""
    return [_record(node) for node in graph.nodes]


def from_records(records: Any) -> Graph:
    """The steps that such records tell of; whatever else they hold is refused."""
    if not isinstance(records, list) or not records:
        raise ModelError("its steps are not a list")
    return described([_node(number, record) for number, record in enumerate(records)])


def _record(node: Node) -> dict[str, Any]:
    usual = Node(node.kind)
    told = (f.name for f in fields(Node) if f.name not in ("kind", *ONLY_TRAINING))
    differing = {n: getattr(node, n) for n in told if getattr(node, n) != getattr(usual, n)}
    return {"kind": node.kind.name.lower(), **differing}


def _node(number: int, record: Any) -> Node:
    if not isinstance(record, dict) or str(record.get("kind")).upper() not in Kind.__members__:
        raise ModelError(f"step {number} is of no known kind")
    given = {name: value for name, value in record.items() if name != "kind"}
    for name, value in given.items():
        if name not in FITS or not FITS[name](value):
            raise ModelError(f"step {number} cannot have this {str(name)[:40]!r}")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in given.items()}
    return Node(Kind[record["kind"].upper()], **values)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 2 and all(map(_is_count, value))


def is_name(value: Any) -> bool:
    """Whether this is a text that can be shown anywhere."""
    return isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()


FITS: dict[str, Callable[[Any], bool]] = {
    "inputs": _are_numbers,
    "name": is_name,
    "channels": _is_count,
    **dict.fromkeys(("size", "kernel", "stride", "padding"), _is_pair),
    **dict.fromkeys(("bias", "count_padding"), lambda value: type(value) is bool),
    "epsilon": lambda value: type(value) is float,
}
