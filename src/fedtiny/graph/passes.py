"""Passes over a graph: what can be left out goes, what belongs together is joined."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from fedtiny.graph.arithmetic import Batch, all_steps
from fedtiny.graph.arrays import Lowered, Norm, Weights
from fedtiny.graph.channels import Flags, ends_of
from fedtiny.graph.ir import LAYERS, Graph, Kind, Node
from fedtiny.graph.live import live_channels, runs_twice
from fedtiny.graph.reach import Reachability


TRANSPOSED = Kind.TRANSPOSED_CONVOLUTION


def for_inference(graph: Graph) -> Graph:
    """The graph without the nodes that only act in training or do not lead to the result."""
    idle = dict.fromkeys(set(range(len(graph.nodes))) - graph.needed, 0)
    dropouts = {i: n.inputs[0] for i, n in enumerate(graph.nodes) if n.kind == Kind.DROPOUT}
    return _without(graph, idle | dropouts)


def fold_batch_norm(net: Lowered) -> Lowered:
    """The network with every batch norm that directly follows a layer made part of it."""
    nodes, weights, norms = list(net.graph.nodes), dict(net.weights), dict(net.norms)
    readers, shared = net.graph.readers, runs_twice(net.graph)
    folded: dict[int, int] = {}
    for number, node in enumerate(nodes):
        if node.kind != Kind.BATCH_NORM:
            continue
        (source,) = node.inputs
        layer = nodes[source]
        alone = len(readers[source]) == 1 and not {node.name, layer.name} & shared
        if layer.kind in LAYERS and alone:
            weights[layer.name] = _folded(layer, weights[layer.name], norms.pop(node.name))
            nodes[source] = replace(layer, bias=True)
            folded[number] = source
    return replace(net, graph=_without(Graph(tuple(nodes)), folded), weights=weights, norms=norms)


def _folded(layer: Node, weights: Weights, norm: Norm) -> Weights:
    """A layer that gives what batch norm makes of its outputs; worked out in float64."""
    scale, bias = norm.scale_and_shift()
    if weights.bias is not None:
        bias = bias + weights.bias * scale
    if layer.kind == Kind.TRANSPOSED_CONVOLUTION:
        link = weights.positions // prod(layer.kernel)
        values = weights.values * scale[ends_of(layer, link, weights.shape[0])[0]]
    elif weights.indices is None:
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
    place of the layer's output: always in a linear layer over something flat; else if the plane is
    the same everywhere and no zero padding cuts into it. Otherwise the channel stays.
    """
    weights, norms, nodes = _without_constants(net), dict(net.norms), list(net.graph.nodes)
    reach = Reachability(net.graph, {f"{n}.weight": w.indices for n, w in weights.items()})
    live = live_channels(net.graph, reach.to_output)
    shared = runs_twice(net.graph)
    for number, node in enumerate(nodes):
        if node.kind in LAYERS and node.name not in shared and node.kind != TRANSPOSED:
            layer = _unread_silenced(weights[node.name], reach.to_output[number])
            layer = _cut(node, layer, live[number], live[node.inputs[0]])
            filters = int(np.count_nonzero(live[number]))
            groups = filters if node.groups == node.channels > 1 else node.groups
            weights[node.name] = layer
            bias = layer.bias is not None
            nodes[number] = replace(node, channels=filters, groups=groups, bias=bias)
        if node.kind == Kind.BATCH_NORM and node.name not in shared:
            values = np.repeat(live[number], net.graph.shapes[number][0] // len(live[number]))
            parts = (part[values] for part in norms[node.name].parts)
            norms[node.name] = Norm(*parts, epsilon=norms[node.name].epsilon)
    return replace(net, graph=Graph(tuple(nodes)), weights=weights, norms=norms)


def _without_constants(net: Lowered) -> dict[str, Weights]:
    """All layers without the weights that add nothing or, by way of a bias, a constant."""
    weights, shared = dict(net.weights), runs_twice(net.graph)
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
        whole = layer.indices is None and reached[source].all() and inside.all()
        if whole or node.name in shared or node.kind == TRANSPOSED:
            continue
        plane = blank[source][:, 0] if blank else np.zeros((len(reached[source]), 1))
        plane = plane.reshape(len(reached[source]), -1)
        flat = node.kind == Kind.LINEAR and net.graph.shapes[source][1:] == (1, 1)
        weights[node.name] = _lightened(node, layer, inside, reached[source], plane, flat)
    return weights


def _lightened(
    node: Node, weights: Weights, inside: Flags, reached: Flags, plane: Batch, flat: bool
) -> Weights:
    """A layer without useless weights; `plane` has what each channel holds for a blank image."""
    link, tap = np.divmod(weights.positions, len(inside))
    filters, channels = ends_of(node, link, len(reached))
    constant = (~reached & (True if flat else _is_plain(node, plane)))[channels]
    useless = ~inside[tap] | constant
    if weights.indices is not None:
        useless |= weights.values == 0
    kept = _only(weights, ~useless)
    added = weights.values[constant] * plane[channels[constant], tap[constant] if flat else 0]
    if not added.any():
        return kept
    before = 0 if weights.bias is None else weights.bias
    bias = before + np.bincount(filters[constant], added, minlength=weights.shape[0])
    return replace(kept, bias=bias.astype(np.float32))


def _is_plain(node: Node, plane: Batch) -> Flags:
    """The channels that a convolution reads as one and the same value everywhere."""
    first = plane[:, :1]
    unpadded = node.padding == node.ends == (0, 0)
    found: Flags = (plane == first).all(axis=1) & ((first[:, 0] == 0) | unpadded)
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


def _cut(node: Node, weights: Weights, filters: Flags, channels: Flags) -> Weights:
    """A layer between fewer channels; every weight that is left lies between those that stay."""
    bias = None if weights.bias is None else weights.bias[filters]
    if weights.indices is None and filters.all():
        return replace(weights, bias=bias)
    inputs = np.repeat(channels, weights.shape[1] * node.groups // len(channels))  # flat: several
    if node.groups > 1:
        inputs = np.ones(weights.shape[1], dtype=np.bool_)
    taps = prod(weights.shape[2:])
    shape = (int(filters.sum()), int(inputs.sum()), *weights.shape[2:])
    new_filter, new_input = (np.cumsum(flags) - 1 for flags in (filters, inputs))
    link, tap = np.divmod(weights.positions, taps)
    written, read = np.divmod(link, len(inputs))
    indices = (new_filter[written] * shape[1] + new_input[read]) * taps + tap
    full = len(indices) == prod(shape)
    return Weights(shape, None if full else indices, weights.values, bias)
