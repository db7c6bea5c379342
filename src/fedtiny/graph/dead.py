"""Leaving out what cannot matter: the same logits from fewer weights and channels.

A channel that the image does not reach has the same plane of values for every image. What a layer
reads of such a channel is a constant. It joins the bias where it is the same at every place of the
layer's output: always in a linear layer; in a convolution if the plane is the same everywhere and
no zero padding cuts into it. Else the channel stays.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedtiny.graph.arithmetic import Batch, all_steps
from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.graph.operations import LAYERS
from fedtiny.graph.reach import Flags, Reachability
from fedtiny.graph.weights import Lowered, Weights


def remove_dead(net: Lowered) -> Lowered:
    """The network without weights that add nothing but a constant, and without dead channels."""
    weights = _without_constants(net)
    reach = Reachability(net.graph, {f"{n}.weight": w.indices for n, w in weights.items()})
    for number, node in net.graph.layers.items():
        written = reach.to_output[number]
        if not written.all():
            useful = reach.useful(f"{node.name}.weight", constants=True)
            weights[node.name] = _unread_silenced(weights[node.name], useful, written)
    nodes = [
        replace(node, bias=weights[node.name].bias is not None) if node.kind in LAYERS else node
        for node in net.graph.nodes
    ]
    live = _live(net.graph.nodes, reach.to_output)
    return _without_channels(Lowered(Graph(tuple(nodes)), weights, net.norms), live)


def _unread_silenced(weights: Weights, useful: Flags, written: Flags) -> Weights:
    """A layer without the weights of filters that nothing listens to."""
    bias = None if weights.bias is None else np.where(written, weights.bias, np.float32(0))
    return replace(_only(weights, useful), bias=bias)


def _without_constants(net: Lowered) -> dict[str, Weights]:
    """All layers without the weights that add nothing or, by way of a bias, a constant."""
    reach = Reachability(net.graph, {f"{n}.weight": _used(w) for n, w in net.weights.items()})
    reached = reach.from_input
    planes = [] if all(flags.all() for flags in reached) else _constant_planes(net)
    weights = dict(net.weights)
    for number, node in net.graph.layers.items():
        (source,) = node.inputs
        inside, layer = reach.inside(number), weights[node.name]
        if layer.indices is None and reached[source].all() and inside.all():
            continue
        plane = planes[source][:, 0] if planes else np.zeros((len(reached[source]), 1))
        plane = plane.reshape(len(reached[source]), -1)
        weights[node.name] = _lightened(node, layer, inside, reached[source], plane)
    return weights


def _used(weights: Weights) -> NDArray[np.int64] | None:
    """The positions of weights that are not zero; None where all are kept."""
    return None if weights.indices is None else weights.indices[weights.values != 0]


def _constant_planes(net: Lowered) -> list[Batch]:
    """What every node gives for a blank image: all that an unreached channel ever gives."""
    channels, *size = net.graph.shapes[0]
    return all_steps(net, np.zeros((channels, 1, *size)))


def _lightened(
    node: Node, weights: Weights, inside: Flags, reached: Flags, plane: Batch
) -> Weights:
    link, tap = np.divmod(weights.positions, len(inside))
    filters, channels = np.divmod(link, len(reached))
    plain = ~reached & (True if node.kind == Kind.LINEAR else _is_plain(node, plane))
    constant = plain[channels]
    useless = ~inside[tap] | constant
    if weights.indices is not None:
        useless |= weights.values == 0
    place = tap[constant] if node.kind == Kind.LINEAR else 0
    added = weights.values[constant] * plane[channels[constant], place]
    return _biased(_only(weights, ~useless), filters[constant], added)


def _is_plain(node: Node, plane: Batch) -> Flags:
    """The channels that a convolution reads as one and the same value everywhere."""
    first = plane[:, :1]
    found: Flags = (plane == first).all(axis=1) & ((first[:, 0] == 0) | (node.padding == (0, 0)))
    return found


def _biased(weights: Weights, filters: NDArray[np.int64], added: Batch) -> Weights:
    if not added.any():
        return weights
    before = 0 if weights.bias is None else weights.bias
    bias = before + np.bincount(filters, added, minlength=weights.shape[0])
    return replace(weights, bias=bias.astype(np.float32))


def _only(weights: Weights, kept: Flags) -> Weights:
    if kept.all():
        return weights
    return replace(weights, indices=weights.positions[kept], values=weights.values[kept])


def _without_channels(net: Lowered, live: list[Flags]) -> Lowered:
    """The network with the live channels of each node only."""
    nodes, weights, norms = list(net.graph.nodes), dict(net.weights), dict(net.norms)
    for number, node in enumerate(nodes):
        if node.kind in LAYERS:
            (source,) = node.inputs
            values = weights[node.name].shape[1] // len(live[source])  # that a channel has
            inputs = np.repeat(live[source], values)
            weights[node.name] = _cut(weights[node.name], live[number], inputs)
            nodes[number] = replace(node, channels=int(np.count_nonzero(live[number])))
        if node.kind == Kind.BATCH_NORM:
            norms[node.name] = norms[node.name].only(live[number])
    return Lowered(Graph(tuple(nodes)), weights, norms)


def _live(nodes: tuple[Node, ...], to_output: list[Flags]) -> list[Flags]:
    """The channels that every node keeps: one set for all nodes that must have the same."""
    groups = _groups(nodes)
    live: Mapping[int, Flags] = {group: np.zeros_like(to_output[group]) for group in groups}
    for number, group in enumerate(groups):
        live[group][:] |= to_output[number]
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


def _cut(weights: Weights, filters: Flags, inputs: Flags) -> Weights:
    """A layer between fewer channels; every weight that is left lies between those that stay."""
    bias = None if weights.bias is None else weights.bias[filters]
    taps = prod(weights.shape[2:])
    shape = (int(filters.sum()), int(inputs.sum()), *weights.shape[2:])
    if weights.indices is None:
        return replace(weights, bias=bias)
    new_filter, new_input = (np.cumsum(flags) - 1 for flags in (filters, inputs))
    link, tap = np.divmod(weights.indices, taps)
    written, read = np.divmod(link, len(inputs))
    indices = (new_filter[written] * shape[1] + new_input[read]) * taps + tap
    full = len(indices) == prod(shape)
    return Weights(shape, None if full else indices, weights.values, bias)
