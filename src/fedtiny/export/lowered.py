"""From a run's model to what is shipped: steps that only training needs are worked in or left out.

Everything here is NumPy; no torch.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtiny.graph.dead import remove_dead as without_dead
from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.graph.passes import drop_dropout, drop_idle, fold_batch_norm
from fedtiny.graph.weights import Lowered, Norm, Weights
from fedtiny.sparse.theta import Theta

LARGEST_INT8 = 127


def lower(graph: Graph, theta: Theta, *, fold: bool, remove_dead: bool) -> Lowered:
    """The network as it is shipped: the same logits from fewer steps and channels.

    `fold` makes batch norm part of the layer before it. `remove_dead` takes out channels that
    nothing reads, weights that only add a constant (which joins a bias), and those that only read
    padding.
    """
    graph = drop_dropout(drop_idle(graph))
    norms = [node for node in graph.nodes if node.kind == Kind.BATCH_NORM]
    net = Lowered(
        graph,
        {node.name: _weights(node, theta) for node in graph.layers.values()},
        {node.name: _norm(node, theta) for node in norms},
    )
    net = fold_batch_norm(net) if fold else net
    return without_dead(net) if remove_dead else net


def _weights(node: Node, theta: Theta) -> Weights:
    name = f"{node.name}.weight"
    bias = theta.tensor(f"{node.name}.bias") if node.bias else None
    if name in theta.param_spec.dense:
        return Weights(theta.param_spec.dense[name], None, theta.tensor(name).reshape(-1), bias)
    full = theta.mask.is_full(name)
    indices = None if full else theta.mask.indices(name).astype(np.int64)
    return Weights(theta.param_spec.prunable[name], indices, theta.kept(name), bias)


def _norm(node: Node, theta: Theta) -> Norm:
    gamma, beta, mean, variance = (
        theta.tensor(f"{node.name}.{part}")
        for part in ("weight", "bias", "running_mean", "running_var")
    )
    return Norm(gamma, beta, mean, variance, node.epsilon)


class Quantised(NamedTuple):
    """Weights in eight bits: a filter's weights are its values times its scale."""

    values: NDArray[np.int8]
    scales: NDArray[np.float32]


def quantise(weights: Weights) -> Quantised:
    """The nearest whole numbers from -127 to 127, where 127 is the largest weight of a filter."""
    filters = weights.filters
    largest = np.zeros(weights.shape[0], dtype=np.float32)
    np.maximum.at(largest, filters, np.abs(weights.values))
    scales = np.where(largest > 0, largest / np.float32(LARGEST_INT8), np.float32(1))
    values = np.rint(weights.values / scales[filters]).clip(-LARGEST_INT8, LARGEST_INT8)
    return Quantised(values.astype(np.int8), scales.astype(np.float32))
