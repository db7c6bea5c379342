"""A graph of plain records as a torch module: what native code is compared with."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from fedtiny.graph.ir import Kind


def _padded(node, x, value=0.0):
    (top, left), (bottom, right) = node.padding, node.ends
    return F.pad(x, (left, right, top, bottom), value=value)


def _mean_pool(node, x):
    how = {"ceil_mode": node.ceil, "count_include_pad": node.count_padding}
    return F.avg_pool2d(x, node.kernel, node.stride, node.padding, **how)


def _layer_norm(module, x):
    return module(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


ACTIVATIONS = {
    Kind.RELU: lambda node, x: F.relu(x),
    Kind.RELU6: lambda node, x: F.relu6(x),
    Kind.LEAKY_RELU: lambda node, x: F.leaky_relu(x, node.slope),
    Kind.SILU: lambda node, x: F.silu(x),
    Kind.HARD_SWISH: lambda node, x: F.hardswish(x),
    Kind.HARD_SIGMOID: lambda node, x: F.hardsigmoid(x),
    Kind.SIGMOID: lambda node, x: torch.sigmoid(x),
    Kind.TANH: lambda node, x: torch.tanh(x),
    Kind.GELU: lambda node, x: F.gelu(x, approximate="tanh" if node.approximate else "none"),
}
FORMS = {
    **ACTIVATIONS,
    Kind.ADD: lambda node, x, y: x + y,
    Kind.MULTIPLY: lambda node, x, y: x * y,
    Kind.CONCAT: lambda node, x, y: torch.cat((x, y), 1),
    Kind.SLICE: lambda node, x: x[:, node.start : node.start + node.channels],
    Kind.MAX_POOL: lambda node, x: F.max_pool2d(
        x, node.kernel, node.stride, node.padding, ceil_mode=node.ceil
    ),
    Kind.MEAN_POOL: _mean_pool,
    Kind.ADAPTIVE_POOL: lambda node, x: F.adaptive_avg_pool2d(x, node.size),
    Kind.FLATTEN: lambda node, x: x.reshape(len(x), -1, 1, 1),
    Kind.RESHAPE: lambda node, x: x.reshape(len(x), node.channels, *node.size),
    Kind.PERMUTE: lambda node, x: x.permute(0, *(axis + 1 for axis in node.order)),
    Kind.UPSAMPLE: lambda node, x: F.interpolate(x, node.size, mode="nearest"),
    Kind.DROPOUT: lambda node, x: x,
}


def _module(node, channels):
    """The torch module of a node that has parameters."""
    if node.kind is Kind.CONVOLUTION:
        how = {"dilation": node.dilation, "groups": node.groups, "bias": node.bias}
        return nn.Conv2d(channels, node.channels, node.kernel, node.stride, **how)
    if node.kind is Kind.LINEAR:
        return nn.Linear(channels, node.channels, bias=node.bias)
    if node.kind is Kind.BATCH_NORM:
        return nn.BatchNorm2d(channels, node.epsilon, node.momentum)
    if node.kind is Kind.GROUP_NORM:
        return nn.GroupNorm(node.groups, channels, node.epsilon)
    return nn.LayerNorm(channels, node.epsilon)


class Reference(nn.Module):
    """Nodes of one name share a module."""

    def __init__(self, graph):
        super().__init__()
        self.graph = graph
        for node, sources in graph.read:
            if node.name and not hasattr(self, node.name):
                self.add_module(node.name, _module(node, sources[0][0]))

    def _apply_node(self, node, values):
        if not node.name:
            return FORMS[node.kind](node, *values)
        module, x = getattr(self, node.name), values[0]
        if node.kind is Kind.CONVOLUTION:
            how = {"stride": node.stride, "dilation": node.dilation, "groups": node.groups}
            return F.conv2d(_padded(node, x), module.weight, module.bias, **how)
        if node.kind in (Kind.LINEAR, Kind.LAYER_NORM):
            return _layer_norm(module, x)
        # torch 2.13 crashes in the backward pass of a group norm of channels-last values
        return module(x.contiguous())

    def forward(self, x):
        values = [x]
        for node in self.graph.nodes[1:]:
            values.append(self._apply_node(node, [values[i] for i in node.inputs]))
        return values[-1].flatten(1)
