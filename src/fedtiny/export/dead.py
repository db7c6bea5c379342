"""Leaving out what cannot matter: the same logits from fewer weights and channels.

A channel is fed if something of the image gets into it; one that is not fed has the same plane of
values for every image. What a layer reads of such a channel is a constant. It joins the bias where
it is the same at every place of the layer's output: always in a linear layer; in a convolution if
the plane is the same everywhere and no zero padding cuts into it. Else the channel stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedtiny.export.arithmetic import Batch, all_steps
from fedtiny.export.network import Lowered, Norm, Weights, described
from fedtiny.graph.ir import Kind, Node
from fedtiny.native.effective import LAYERS, Flags, inside_taps, plane_sizes


def without_dead(net: Lowered) -> Lowered:
    """The network without weights that add nothing but a constant, and without dead channels."""
    return _without_channels(*_without_weights(net))


@dataclass(frozen=True, eq=False)
class _Links:
    """Where each kept weight of a layer reads and writes."""

    filters: NDArray[np.int64]
    channels: NDArray[np.int64]
    taps: NDArray[np.int64]

    @classmethod
    def of(cls, weights: Weights, taps: int) -> "_Links":
        positions, channels = weights.positions, weights.size // weights.shape[0] // taps
        link = positions // taps
        return cls(link // channels, link % channels, positions % taps)


def _without_weights(net: Lowered) -> tuple[Lowered, list[Flags]]:
    """Drop the weights that add nothing or a constant; also, which channels are heard then."""
    nodes = net.graph.nodes
    insides = _insides(nodes)
    fed = _fed(net, insides)
    planes = [] if all(flags.all() for flags in fed) else _constant_planes(net)
    weights = dict(net.weights)
    for number, node in enumerate(nodes):
        if node.kind in LAYERS:
            source = node.inputs[0]
            plane = planes[source][:, 0] if planes else np.empty(0)
            weights[node.name] = _lightened(
                node, weights[node.name], insides[number], fed[source], plane
            )
    heard = _heard(nodes, weights, insides, fed)
    for number, node in enumerate(nodes):
        if node.kind in LAYERS and not heard[number].all():
            weights[node.name] = _silenced(weights[node.name], heard[number])
    nodes = [
        replace(n, bias=weights[n.name].bias is not None) if n.kind in LAYERS else n for n in nodes
    ]
    return Lowered(described(nodes), weights, net.norms), heard


def _insides(nodes: list[Node]) -> dict[int, Flags]:
    sizes = plane_sizes(nodes)
    return {
        i: inside_taps(node, sizes[node.inputs[0]])
        for i, node in enumerate(nodes)
        if node.kind in LAYERS
    }


def _fed(net: Lowered, insides: Mapping[int, Flags]) -> list[Flags]:
    """The channels of every step that something of the image gets into."""
    fed: list[Flags] = []
    for number, node in enumerate(net.graph.nodes):
        if node.kind == Kind.INPUT:
            fed.append(np.ones(node.channels, dtype=np.bool_))
        elif node.kind in LAYERS:
            fed.append(_fed_filters(net.weights[node.name], insides[number], fed[node.inputs[0]]))
        else:
            fed.append(np.logical_or.reduce([fed[i] for i in node.inputs]))
    return fed


def _fed_filters(weights: Weights, inside: Flags, fed: Flags) -> Flags:
    if weights.indices is None:
        return np.full(weights.shape[0], fed.any() and inside.any())
    links, found = _Links.of(weights, len(inside)), np.zeros(weights.shape[0], dtype=np.bool_)
    useful = fed[links.channels] & inside[links.taps] & (weights.values != 0)
    found[links.filters[useful]] = True
    return found


def _constant_planes(net: Lowered) -> list[Batch]:
    """What every step gives for a blank image; a channel that is not fed always gives this."""
    first = net.graph.nodes[0]
    return all_steps(net, np.zeros((first.channels, 1, *first.size)))


def _lightened(node: Node, weights: Weights, inside: Flags, fed: Flags, plane: Batch) -> Weights:
    """A layer without weights that add nothing or, by way of its bias, a constant."""
    if weights.indices is None and fed.all() and inside.all():
        return weights
    links = _Links.of(weights, len(inside))
    plane = plane.reshape(len(fed), -1) if len(plane) else np.zeros((len(fed), 1))
    plain = ~fed & (True if node.kind == Kind.LINEAR else _is_plain(node, plane))
    constant = plain[links.channels]
    useless = ~inside[links.taps] | constant
    if weights.indices is not None:
        useless |= weights.values == 0
    place = links.taps[constant] if node.kind == Kind.LINEAR else 0
    added = weights.values[constant] * plane[links.channels[constant], place]
    return _biased(_only(weights, ~useless), links.filters[constant], added)


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


def _heard(
    nodes: list[Node],
    weights: Mapping[str, Weights],
    insides: Mapping[int, Flags],
    like: list[Flags],
) -> list[Flags]:
    """The channels of every step that the output depends on."""
    heard = [np.zeros_like(flags) for flags in like]
    heard[-1][:] = True
    for number in range(len(nodes) - 1, 0, -1):
        node, given = nodes[number], heard[number]
        if node.kind in LAYERS:
            given = _heard_channels(
                weights[node.name], len(insides[number]), given, len(heard[node.inputs[0]])
            )
        for source in node.inputs:
            heard[source] |= given
    return heard


def _heard_channels(weights: Weights, taps: int, heard: Flags, channels: int) -> Flags:
    if weights.indices is None:
        return np.full(channels, heard.any())
    links, found = _Links.of(weights, taps), np.zeros(channels, dtype=np.bool_)
    found[links.channels[heard[links.filters]]] = True
    return found


def _silenced(weights: Weights, heard: Flags) -> Weights:
    """A layer without the weights of filters that nothing listens to."""
    bias = None if weights.bias is None else np.where(heard, weights.bias, np.float32(0))
    return replace(_only(weights, heard[weights.filters]), bias=bias)


def _without_channels(net: Lowered, heard: list[Flags]) -> Lowered:
    """Take the channels out that no step of their group is heard on."""
    nodes, live = net.graph.nodes, _live(net.graph.nodes, heard)
    sizes = plane_sizes(nodes)
    weights = {}
    for number, node in enumerate(nodes):
        if node.kind in LAYERS:
            source = node.inputs[0]
            values = prod(sizes[source]) if node.kind == Kind.LINEAR else 1
            inputs = np.repeat(live[source], values)
            weights[node.name] = _cut(net.weights[node.name], live[number], inputs)
    norms = {
        node.name: _cut_norm(net.norms[node.name], live[number])
        for number, node in enumerate(nodes)
        if node.kind == Kind.BATCH_NORM
    }
    cut = [
        replace(node, channels=int(np.count_nonzero(live[i]))) if node.kind in LAYERS else node
        for i, node in enumerate(nodes)
    ]
    return Lowered(described(cut), weights, norms)


def _live(nodes: list[Node], heard: list[Flags]) -> list[Flags]:
    """The channels that every step keeps: one set for all steps that must have the same."""
    groups = _groups(nodes)
    live = {group: np.zeros_like(heard[group]) for group in groups}
    for number, group in enumerate(groups):
        live[group] |= heard[number]
    for whole in (0, len(nodes) - 1):
        live[groups[whole]][:] = True
    for flags in live.values():
        if not flags.any():
            flags[0] = True  # every tensor has something in it
    return [live[group] for group in groups]


def _groups(nodes: list[Node]) -> list[int]:
    """The first step of those that share their channels: all but layers hand on what they read."""
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


def _cut_norm(norm: Norm, live: Flags) -> Norm:
    return Norm(
        norm.gamma[live], norm.beta[live], norm.mean[live], norm.variance[live], norm.epsilon
    )
