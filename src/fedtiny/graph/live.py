"""The channels that a network keeps where nothing reads the others."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedtiny.graph.channels import Flags
from fedtiny.graph.ir import LAYERS, Graph, Kind, Node

FIXED = (
    *(Kind.TRANSPOSED_CONVOLUTION, Kind.GROUP_NORM, Kind.LAYER_NORM, Kind.RESHAPE),
    *(Kind.PERMUTE, Kind.MATMUL, Kind.PARAMETER, Kind.SLICE, Kind.SOFTMAX),
)
"""Whose meaning would change with fewer channels."""


def runs_twice(graph: Graph) -> frozenset[str]:
    """The names of what several nodes share."""
    counts = Counter(node.name for node in graph.nodes if node.name)
    return frozenset(name for name, count in counts.items() if count > 1)


def live_channels(graph: Graph, to_output: Sequence[Flags]) -> list[Flags]:
    """The channels that every node keeps: one set for all nodes that must have the same."""
    sets = _sets(graph)
    live = {number: np.zeros_like(to_output[number]) for number in sets}
    for number, own in enumerate(sets):
        live[own] |= to_output[number]
    for number in (0, len(sets) - 1, *_fixed(graph)):
        live[sets[number]][:] = True
    for flags in live.values():
        if not flags.any():
            flags[0] = True  # every tensor has something in it
    joins = [
        (live[sets[i]], [live[sets[source]] for source in node.inputs])
        for i, node in enumerate(graph.nodes)
        if _is_join(node)
    ]
    while sum(_settle(*join) for join in joins):  # all of them, as long as one grows
        pass
    return [live[own] for own in sets]


def _sets(graph: Graph) -> list[int]:
    """The first node of those that share their channels: most hand on what they read."""
    sets = list(range(len(graph.nodes)))
    for number, node in enumerate(graph.nodes):
        new = node.kind in LAYERS and not _is_depthwise(graph, number)
        if new or not node.inputs or _is_join(node) or node.kind in FIXED:
            continue
        joined = sorted({sets[i] for i in node.inputs})
        sets[number] = joined[0]
        sets = [joined[0] if own in joined else own for own in sets]
    return sets


def _is_join(node: Node) -> bool:
    return node.kind == Kind.CONCAT and node.axis == 0


def _is_depthwise(graph: Graph, number: int) -> bool:
    """Whether each channel has one filter of its own."""
    node, sources = graph.read[number]
    alone = node.groups == node.channels > 1
    return node.kind == Kind.CONVOLUTION and alone and sources[0][0] == node.groups


def _fixed(graph: Graph) -> list[int]:
    """The nodes that keep all their channels."""
    shared, found = runs_twice(graph), []
    for number, node in enumerate(graph.nodes):
        grouped = node.kind in LAYERS and node.groups > 1 and not _is_depthwise(graph, number)
        if node.kind in FIXED or node.name in shared or grouped:
            found += [number, *node.inputs]
    return found


def _settle(own: Flags, sources: Sequence[Flags]) -> bool:
    """Make a concat keep what its sources keep, and they what it keeps; whether that is more."""
    before = sum(int(flags.sum()) for flags in (own, *sources))
    first, second = sources
    if len(first) + len(second) == len(own):
        own |= np.concatenate(sources)
        first |= own[: len(first)]
        second |= own[len(first) :]
    else:  # single values of what was flat
        for flags in (own, *sources):
            flags[:] = True
    return sum(int(flags.sum()) for flags in (own, *sources)) != before
