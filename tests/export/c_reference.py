"""What exported C should give: NumPy in float64, with the weights that its tables hold."""

from dataclasses import replace

import numpy as np

from fedtiny.export.network import filters_first, quantise
from fedtiny.graph.arithmetic import all_steps


def as_held(net, values):
    """The network whose weights are what the tables hold, in float32."""
    if values == "fp32":
        return net
    nodes = {node.name: node for node in net.graph.nodes}
    return replace(net, weights={n: _rounded(nodes[n], w) for n, w in net.weights.items()})


def _rounded(node, weights):
    weights = filters_first(node, weights)
    held, scales = quantise(weights)
    return filters_first(node, replace(weights, values=held * scales[weights.filters]))


def logits(net, images):
    """In float64, a row an image."""
    return all_steps(net, images.astype(np.float64).swapaxes(0, 1))[-1][:, :, 0, 0].T
