"""Nodes as plain records, and back from ones that may lie: the one reader and writer.

In a packed file (docs/packed.md) a record has the name of its kind and what differs from the
usual; between processes it has the kind's number and every field, those of training too.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from typing import Any

from fedtiny.errors import ModelError
from fedtiny.graph.operations import Kind, Node

MAX_NAME = 200
MAX_COUNT = 1 << 31
ONLY_TRAINING = ("momentum", "probability")
Record = dict[str, Any]


def complete_records(nodes: Iterable[Node]) -> list[Record]:
    """Every node with all its fields, as another process takes it."""
    return [asdict(node) for node in nodes]


def packed_records(nodes: Iterable[Node]) -> list[Record]:
    """Every node as its kind and what differs from the usual; training is over."""
    return [_packed(node) for node in nodes]


def _packed(node: Node) -> Record:
    usual = Node(node.kind)
    shown = (f.name for f in fields(Node) if f.name not in ("kind", *ONLY_TRAINING))
    differing = {n: getattr(node, n) for n in shown if getattr(node, n) != getattr(usual, n)}
    return {"kind": node.kind.name.lower(), **differing}


def nodes_of(records: Any, *, training: bool, most: int) -> tuple[Node, ...]:
    """The nodes that records say, at most so many; whatever else they hold is refused.

    With `training` they are those of another process, else those of a packed file.
    """
    if not isinstance(records, list):
        raise ModelError("its steps are not a list")
    if len(records) > most:
        raise ModelError(f"a network has 2 to {most} steps, not {len(records)}")
    return tuple(_node(number, record, training) for number, record in enumerate(records))


def _node(number: int, record: Any, training: bool) -> Node:
    kind = _kind(record, training)
    if kind is None:
        raise ModelError(f"step {number} is of no known kind")
    values = {name: value for name, value in record.items() if name != "kind"}
    fits = COMPLETE if training else PACKED
    for name, value in values.items():
        if name not in fits or not fits[name](value):
            raise ModelError(f"step {number} cannot have this {str(name)[:40]!r}")
    plain: Record = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    return Node(kind, **plain)


def _kind(record: Any, training: bool) -> Kind | None:
    """The kind that a record names, by its number between processes."""
    named = record.get("kind") if isinstance(record, dict) else None
    if training and isinstance(named, int):
        return next((kind for kind in Kind if kind == named), None)
    return Kind.__members__.get(named.upper()) if isinstance(named, str) else None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _are_counts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 2 and all(map(_is_count, value))


def _is_pair(value: Any) -> bool:
    return _are_counts(value) and len(value) == 2


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_number(value: Any) -> bool:
    return type(value) is float


def is_name(value: Any) -> bool:
    """Whether this is a text that can be shown anywhere."""
    return isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()


PACKED: dict[str, Callable[[Any], bool]] = {
    "inputs": _are_counts,
    "name": is_name,
    "channels": _is_count,
    **dict.fromkeys(("size", "kernel", "stride", "padding"), _is_pair),
    **dict.fromkeys(("bias", "count_padding"), _is_flag),
    "epsilon": _is_number,
}
COMPLETE: dict[str, Callable[[Any], bool]] = {
    **PACKED,
    **dict.fromkeys(ONLY_TRAINING, _is_number),
    "name": lambda value: isinstance(value, str),
}
