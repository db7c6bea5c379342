"""Nodes as plain records, and back from ones that may lie.

In a packed file (docs/packed.md) a record has the name of its kind and what differs from the usual;
between processes it has the kind's number and every field, those of training too.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from fedtiny.errors import ModelError
from fedtiny.graph.node import Kind, Node

MAX_NAME = 200
MAX_COUNT = 1 << 31
MAX_NUMBER = 1e9  # of a slope, a factor or an offset
MAX_AXES = 6  # of a parameter
ONLY_TRAINING = ("momentum", "probability", "module")
Record = dict[str, Any]


def packed_records(nodes: Iterable[Node]) -> list[Record]:
    """Every node as its kind and what differs from the usual; training is over."""
    shown = [f for f in fields(Node) if f.name not in ("kind", *ONLY_TRAINING)]
    return [
        {
            "kind": node.kind.name.lower(),
            **{f.name: v for f in shown if (v := getattr(node, f.name)) != f.default},
        }
        for node in nodes
    ]


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


def _are_counts(value: Any, most: int = 2) -> bool:
    return isinstance(value, list | tuple) and len(value) <= most and all(map(_is_count, value))


def _is_pair(value: Any) -> bool:
    return _are_counts(value) and len(value) == 2


def _is_flag(value: Any) -> bool:
    return type(value) is bool


def _is_number(value: Any) -> bool:
    return type(value) is float


def _is_finite(value: Any) -> bool:
    return type(value) is float and abs(value) <= MAX_NUMBER


def is_name(value: Any) -> bool:
    """Whether this is a text that can be shown anywhere."""
    return isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable()


PACKED: dict[str, Callable[[Any], bool]] = {
    "inputs": _are_counts,
    "name": is_name,
    **dict.fromkeys(("channels", "groups", "axis", "start"), _is_count),
    **dict.fromkeys(("size", "kernel", "stride", "padding"), _is_pair),
    **dict.fromkeys(("dilation", "padding_end", "output_padding"), _is_pair),
    **dict.fromkeys(("bias", "count_padding", "ceil", "approximate"), _is_flag),
    **dict.fromkeys(("slope", "factor", "offset"), _is_finite),
    "order": lambda value: _are_counts(value, most=3),
    "shape": lambda value: _are_counts(value, most=MAX_AXES),
    "epsilon": _is_number,
}
COMPLETE: dict[str, Callable[[Any], bool]] = {
    **PACKED,
    **dict.fromkeys(("momentum", "probability"), _is_number),
    **dict.fromkeys(("name", "module"), lambda value: isinstance(value, str)),
    "padding_end": lambda value: value is None or _is_pair(value),
}
