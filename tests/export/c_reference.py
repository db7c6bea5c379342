"""What exported C should give: NumPy in float64, with the weights that its tables hold."""

from dataclasses import replace

import numpy as np

from fedtiny.export.c_tables import turned_weights
from fedtiny.export.network import quantise
from fedtiny.graph.arithmetic import all_steps
from fedtiny.graph.node import Kind


def as_held(net, values):
    """The network whose weights are what the tables hold, in float32."""
    if values == "fp32":
        return net
    groups = {
        node.name: node.groups
        for node in net.graph.nodes
        if node.kind == Kind.TRANSPOSED_CONVOLUTION
    }
    held = {name: _rounded(w, groups.get(name)) for name, w in net.weights.items()}
    return replace(net, weights=held)


def _rounded(weights, turned_groups):
    if turned_groups is not None:
        return turned_weights(_rounded(turned_weights(weights, turned_groups), None), turned_groups)
    held, scales = quantise(weights)
    return replace(weights, values=held * scales[weights.filters])


def logits(net, images):
    """In float64, a row an image."""
    return all_steps(net, images.astype(np.float64).swapaxes(0, 1))[-1][:, :, 0, 0].T
