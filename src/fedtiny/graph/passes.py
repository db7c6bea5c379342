"""Passes over a graph: what can be left out goes, what belongs together is joined."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from fedtiny.graph.arithmetic import Batch, Lowered, Norm, Weights, all_steps
from fedtiny.graph.ir import LAYERS, Graph, Kind, Node
from fedtiny.graph.reach import Flags, Reachability


def for_inference(graph: Graph) -> Graph:
    """The graph without the nodes that only act in training or do not lead to the result."""
    idle = dict.fromkeys(set(range(len(graph.nodes))) - graph.needed, 0)
    dropouts = {i: n.inputs[0] for i, n in enumerate(graph.nodes) if n.kind == Kind.DROPOUT}
    return _without(graph, idle | dropouts)


def fold_batch_norm(net: Lowered) -> Lowered:
    """The network with every batch norm that directly follows a layer made part of it."""
    nodes, weights, norms = list(net.graph.nodes), dict(net.weights), dict(net.norms)
    readers = net.graph.readers
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


def remove_dead(net: Lowered) -> Lowered:
    """The same logits without weights that add nothing but a constant, and without dead channels.

    A channel that the image does not reach has the same plane of values for every image. What a
    layer reads of such a channel is a constant. It joins the bias where it is the same at every
    place of the layer's output: always in a linear layer; in a convolution if the plane is the same
    everywhere and no zero padding cuts into it. Else the channel stays.
    """
    weights, norms, nodes = _without_constants(net), dict(net.norms), list(net.graph.nodes)
    reach = Reachability(net.graph, {f"{n}.weight": w.indices for n, w in weights.items()})
    live = _live(net.graph.nodes, reach.to_output)
    for number, node in enumerate(nodes):
        if node.kind in LAYERS:
            layer = _unread_silenced(weights[node.name], reach.to_output[number])
            layer = _cut(layer, live[number], live[node.inputs[0]])
            filters = int(np.count_nonzero(live[number]))
            weights[node.name] = layer
            nodes[number] = replace(node, channels=filters, bias=layer.bias is not None)
        if node.kind == Kind.BATCH_NORM:
            parts = (part[live[number]] for part in norms[node.name].parts)
            norms[node.name] = Norm(*parts, epsilon=norms[node.name].epsilon)
    return Lowered(Graph(tuple(nodes)), weights, norms)


def _without_constants(net: Lowered) -> dict[str, Weights]:
    """All layers without the weights that add nothing or, by way of a bias, a constant."""
    weights = dict(net.weights)
    used = {n: None if w.indices is None else w.indices[w.values != 0] for n, w in weights.items()}
    reach = Reachability(net.graph, {f"{name}.weight": kept for name, kept in used.items()})
    reached = reach.from_input
    blank: list[Batch] = []  # what every node gives for a blank image, if a channel is unreached
    if not all(flags.all() for flags in reached):
        channels, *size = net.graph.shapes[0]
        blank = all_steps(net, np.zeros((channels, 1, *size)))
    for number, node in net.graph.layers.items():
        (source,) = node.inputs
        inside, layer = reach.inside(number), weights[node.name]
        if layer.indices is None and reached[source].all() and inside.all():
            continue
        plane = blank[source][:, 0] if blank else np.zeros((len(reached[source]), 1))
        plane = plane.reshape(len(reached[source]), -1)
        weights[node.name] = _lightened(node, layer, inside, reached[source], plane)
    return weights


def _lightened(
    node: Node, weights: Weights, inside: Flags, reached: Flags, plane: Batch
) -> Weights:
    """A layer without useless weights; `plane` has what each channel holds for a blank image."""
    link, tap = np.divmod(weights.positions, len(inside))
    filters, channels = np.divmod(link, len(reached))
    linear = node.kind == Kind.LINEAR
    constant = (~reached & (True if linear else _is_plain(node, plane)))[channels]
    useless = ~inside[tap] | constant
    if weights.indices is not None:
        useless |= weights.values == 0
    kept = _only(weights, ~useless)
    added = weights.values[constant] * plane[channels[constant], tap[constant] if linear else 0]
    if not added.any():
        return kept
    before = 0 if weights.bias is None else weights.bias
    bias = before + np.bincount(filters[constant], added, minlength=weights.shape[0])
    return replace(kept, bias=bias.astype(np.float32))


def _is_plain(node: Node, plane: Batch) -> Flags:
    """The channels that a convolution reads as one and the same value everywhere."""
    first = plane[:, :1]
    found: Flags = (plane == first).all(axis=1) & ((first[:, 0] == 0) | (node.padding == (0, 0)))
    return found


def _unread_silenced(weights: Weights, written: Flags) -> Weights:
    """A layer without the weights of filters that nothing listens to."""
    if written.all():
        return weights
    bias = None if weights.bias is None else np.where(written, weights.bias, np.float32(0))
    return replace(_only(weights, written[weights.filters]), bias=bias)


def _only(weights: Weights, kept: Flags) -> Weights:
    if kept.all():
        return weights
    return replace(weights, indices=weights.positions[kept], values=weights.values[kept])


def _live(nodes: tuple[Node, ...], to_output: list[Flags]) -> list[Flags]:
    """The channels that every node keeps: one set for all nodes that must have the same."""
    groups = _groups(nodes)
    live = {group: np.zeros_like(to_output[group]) for group in groups}
    for number, group in enumerate(groups):
        live[group] |= to_output[number]
    for end in (0, len(nodes) - 1):
        live[groups[end]][:] = True
    for flags in live.values():
        if not flags.any():
            flags[0] = True  # every tensor has something in it
    return [live[group] for group in groups]


def _groups(nodes: tuple[Node, ...]) -> list[int]:
    """The first node of those that share their channels: all but layers hand on what they read."""
    groups = list(range(len(nodes)))
    for number, node in enumerate(nodes):
        if node.kind in LAYERS or node.kind == Kind.INPUT:
            continue
        joined = sorted({groups[i] for i in node.inputs})
        groups[number] = joined[0]
        groups = [joined[0] if group in joined else group for group in groups]
    return groups


def _cut(weights: Weights, filters: Flags, channels: Flags) -> Weights:
    """A layer between fewer channels; every weight that is left lies between those that stay."""
    bias = None if weights.bias is None else weights.bias[filters]
    if weights.indices is None:
        return replace(weights, bias=bias)
    inputs = np.repeat(channels, weights.shape[1] // len(channels))  # a flat channel has several
    taps = prod(weights.shape[2:])
    shape = (int(filters.sum()), int(inputs.sum()), *weights.shape[2:])
    new_filter, new_input = (np.cumsum(flags) - 1 for flags in (filters, inputs))
    link, tap = np.divmod(weights.indices, taps)
    written, read = np.divmod(link, len(inputs))
    indices = (new_filter[written] * shape[1] + new_input[read]) * taps + tap
    full = len(indices) == prod(shape)
    return Weights(shape, None if full else indices, weights.values, bias)
