"""Steps that inference can do without: idle ones and dropout go, batch norm joins a layer."""

from dataclasses import replace

import numpy as np

from fedtiny.export.checks import needed
from fedtiny.export.network import Lowered, Norm, Weights, described
from fedtiny.graph.ir import Kind, Node

LAYERS = (Kind.CONVOLUTION, Kind.LINEAR)


def without_idle(nodes: list[Node]) -> list[Node]:
    """The nodes without those that do not lead to the result."""
    idle = set(range(len(nodes))) - needed(nodes)
    return bypassed(nodes, dict.fromkeys(idle, 0))


def without_dropout(nodes: list[Node]) -> list[Node]:
    """The nodes without those that only act in training."""
    gone = {i: node.inputs[0] for i, node in enumerate(nodes) if node.kind == Kind.DROPOUT}
    return bypassed(nodes, gone)


def folded(net: Lowered) -> Lowered:
    """The network with every batch norm that directly follows a layer made part of it."""
    nodes, weights, norms = list(net.graph.nodes), dict(net.weights), dict(net.norms)
    readers = [sum(i in node.inputs for node in nodes) for i in range(len(nodes))]
    gone: dict[int, int] = {}
    for number, node in enumerate(nodes):
        if node.kind != Kind.BATCH_NORM:
            continue
        source = node.inputs[0]
        layer = nodes[source]
        if layer.kind in LAYERS and readers[source] == 1:
            weights[layer.name] = joined(weights[layer.name], norms.pop(node.name))
            nodes[source] = replace(layer, bias=True)
            gone[number] = source
    return Lowered(described(bypassed(nodes, gone)), weights, norms)


def joined(weights: Weights, norm: Norm) -> Weights:
    """A layer that gives what batch norm makes of its outputs; worked out in float64."""
    scale = norm.gamma / np.sqrt(norm.variance.astype(np.float64) + norm.epsilon)
    bias = norm.beta - norm.mean * scale
    if weights.bias is not None:
        bias = bias + weights.bias * scale
    if weights.indices is None:
        values = weights.values.reshape(weights.shape[0], -1) * scale[:, np.newaxis]
    else:
        values = weights.values * scale[weights.filters]
    return replace(
        weights, values=values.reshape(-1).astype(np.float32), bias=bias.astype(np.float32)
    )


def bypassed(nodes: list[Node], gone: dict[int, int]) -> list[Node]:
    """The nodes without those named; who reads one of them reads what is put in its place."""
    numbers: dict[int, int] = {}
    kept: list[Node] = []
    for number, node in enumerate(nodes):
        if number in gone:
            numbers[number] = numbers[gone[number]]
            continue
        numbers[number] = len(kept)
        kept.append(replace(node, inputs=tuple(numbers[i] for i in node.inputs)))
    return kept
