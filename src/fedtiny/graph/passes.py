"""Passes over a graph: what inference can do without goes, what belongs together is joined."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.graph.operations import LAYERS
from fedtiny.graph.weights import Lowered, Norm, Weights

CAN_ADD = (Kind.CONVOLUTION,)
CAN_RECTIFY = (*LAYERS, Kind.BATCH_NORM, Kind.ADD)


def drop_idle(graph: Graph) -> Graph:
    """The graph without the nodes that do not lead to the result."""
    idle = set(range(len(graph.nodes))) - graph.needed
    return _without(graph, dict.fromkeys(idle, 0))


def drop_dropout(graph: Graph) -> Graph:
    """The graph without the nodes that only act in training."""
    dropouts = {i: n.inputs[0] for i, n in enumerate(graph.nodes) if n.kind == Kind.DROPOUT}
    return _without(graph, dropouts)


def fold_batch_norm(net: Lowered) -> Lowered:
    """The network with every batch norm that directly follows a layer made part of it."""
    nodes, weights, norms = list(net.graph.nodes), dict(net.weights), dict(net.norms)
    readers = _readers(net.graph)
    folded: dict[int, int] = {}
    for number, node in enumerate(nodes):
        if node.kind != Kind.BATCH_NORM:
            continue
        (source,) = node.inputs
        layer = nodes[source]
        if layer.kind in LAYERS and len(readers[source]) == 1:
            weights[layer.name] = _folded(weights[layer.name], norms.pop(node.name))
            nodes[source] = replace(layer, bias=True)
            folded[number] = source
    return Lowered(_without(Graph(tuple(nodes)), folded), weights, norms)


def _folded(weights: Weights, norm: Norm) -> Weights:
    """A layer that gives what batch norm makes of its outputs; worked out in float64."""
    scale, bias = norm.scale_and_shift()
    if weights.bias is not None:
        bias = bias + weights.bias * scale
    if weights.indices is None:
        values = weights.values.reshape(weights.shape[0], -1) * scale[:, np.newaxis]
    else:
        values = weights.values * scale[weights.filters]
    return replace(
        weights, values=values.reshape(-1).astype(np.float32), bias=bias.astype(np.float32)
    )


def _without(graph: Graph, gone: Mapping[int, int]) -> Graph:
    """The graph without some nodes; who reads one of them reads what is put in its place."""
    numbers: dict[int, int] = {}
    kept: list[Node] = []
    for number, node in enumerate(graph.nodes):
        if number in gone:
            numbers[number] = numbers[gone[number]]
            continue
        numbers[number] = len(kept)
        kept.append(replace(node, inputs=tuple(numbers[i] for i in node.inputs)))
    return Graph(tuple(kept))


def _readers(graph: Graph) -> list[list[int]]:
    """By node, those that read it, each as often as it does."""
    found: list[list[int]] = [[] for _ in graph.nodes]
    for number, node in enumerate(graph.nodes):
        for source in node.inputs:
            found[source].append(number)
    return found


@dataclass(frozen=True)
class Fused:
    """A node computed with the sum and the ReLU behind it; values go by the number of the node
    that gives them. What is added comes second in `reads`."""

    node: Node
    reads: tuple[int, ...]
    gives: int
    relu: bool


def fuse(graph: Graph) -> list[Fused]:
    """Sums and ReLUs join the layer before them where nothing else reads that layer."""
    readers, values = _readers(graph), dict[int, int]()
    steps: list[Fused] = []

    def only_reader(number: int, kind: Kind) -> int | None:
        found = readers[number]
        return found[0] if len(found) == 1 and graph.nodes[found[0]].kind == kind else None

    for number, node in enumerate(graph.nodes):
        if number in values:
            continue
        joined, reads = [number], [values[i] for i in node.inputs]
        if node.kind in CAN_ADD and (added := only_reader(number, Kind.ADD)):
            (other,) = (i for i in graph.nodes[added].inputs if i != number)
            if other in values:
                reads.append(values[other])
                joined.append(added)
        relu = only_reader(joined[-1], Kind.RELU) if node.kind in CAN_RECTIFY else None
        if relu:
            joined.append(relu)
        values.update(dict.fromkeys(joined, joined[-1]))
        steps.append(Fused(node, tuple(reads), joined[-1], relu is not None))
    return steps
