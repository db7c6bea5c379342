"""What a graph computes, in NumPy; a batch is (channels, images, rows, columns)."""

from collections.abc import Callable
from math import pi

import numpy as np

from fedtiny.graph.arrays import Floats as Floats
from fedtiny.graph.arrays import Lowered as Lowered
from fedtiny.graph.arrays import Norm as Norm
from fedtiny.graph.arrays import Weights as Weights
from fedtiny.graph.ir import Kind, Node
from fedtiny.graph.windows import Batch as Batch
from fedtiny.graph.windows import adaptively_pooled as adaptively_pooled
from fedtiny.graph.windows import (
    by_channel,
    convolved,
    convolved_transposed,
    max_pooled,
    mean_pooled,
)

AXES = (0, 2, 3)  # of channels, rows and columns in a batch


def all_steps(net: Lowered, batch: Batch) -> list[Batch]:
    """What every node gives for a batch."""
    outputs: list[Batch] = []
    for node in net.graph.nodes:
        outputs.append(FORMS[node.kind](net, node, *([outputs[i] for i in node.inputs] or [batch])))
    return outputs


def batch_normed(x: Batch, norm: Norm) -> Batch:
    """Batch norm with running statistics."""
    scale, shift = norm.scale_and_shift()
    return x * by_channel(scale, x) + by_channel(shift, x)


def group_normed(x: Batch, norm: Norm, groups: int) -> Batch:
    """Each group of an image's channels at mean 0 and deviation 1."""
    return _affine(_centred(x.reshape(groups, -1, *x.shape[1:]), (1, 3, 4), norm), norm, x)


def layer_normed(x: Batch, norm: Norm) -> Batch:
    """The channels at each place at mean 0 and deviation 1."""
    return _affine(_centred(x, (0,), norm), norm, x)


def _centred(x: Batch, axes: tuple[int, ...], norm: Norm) -> Batch:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    found: Batch = (x - mean) / np.sqrt(variance + norm.epsilon)
    return found


def _affine(x: Batch, norm: Norm, like: Batch) -> Batch:
    return x.reshape(like.shape) * by_channel(norm.gamma, like) + by_channel(norm.beta, like)


def sigmoid(x: Batch) -> Batch:
    """1 / (1 + e^-x), without overflow."""
    found: Batch = 0.5 * (1 + np.tanh(0.5 * x))
    return found


def hard_sigmoid(x: Batch) -> Batch:
    """relu6(x + 3) / 6."""
    found: Batch = np.clip(x + 3, 0, 6) / 6
    return found


def gelu(x: Batch, approximate: bool) -> Batch:
    """x times the normal distribution's share below it."""
    if approximate:
        share: Batch = np.tanh((2 / pi) ** 0.5 * (x + 0.044715 * x**3))
    else:
        share = _erf(x * 0.5**0.5)
    found: Batch = 0.5 * x * (1 + share)
    return found


ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def _erf(x: Batch) -> Batch:
    """The error function to 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    size = np.abs(x)
    t = 1 / (1 + 0.3275911 * size)
    share = np.zeros_like(t)
    for factor in reversed(ERF):
        share = (share + factor) * t
    found: Batch = np.copysign(1 - share * np.exp(-size * size), x)
    return found


def softmax(x: Batch, axis: int) -> Batch:
    """Shares that add up to 1 along an axis."""
    grown = np.exp(x - x.max(axis, keepdims=True))
    found: Batch = grown / grown.sum(axis, keepdims=True)
    return found


def reshaped(x: Batch, shape: tuple[int, ...]) -> Batch:
    """The values of each image in another shape."""
    return x.swapaxes(0, 1).reshape(x.shape[1], *shape).swapaxes(0, 1)


def permuted(x: Batch, order: tuple[int, ...]) -> Batch:
    """The axes of each image in another order."""
    channels, rows, columns = (AXES[axis] for axis in order)
    return x.transpose(channels, 1, rows, columns)


def upsampled(x: Batch, node: Node) -> Batch:
    """Each value as often as the size asks for."""
    for axis, side in zip((2, 3), node.size, strict=True):
        x = x.repeat(side // x.shape[axis], axis)
    return x


def parameter(net: Lowered, node: Node, batch: Batch) -> Batch:
    """A learned tensor, for every image."""
    values = net.parameters[node.name].astype(batch.dtype, copy=False)
    shape = (node.channels, batch.shape[1], *node.size)
    return np.broadcast_to(values.reshape(node.channels, 1, *node.size), shape)


def sliced(x: Batch, node: Node) -> Batch:
    """A part along an axis."""
    return x.take(range(node.start, node.start + node.channels), AXES[node.axis])


FORMS: dict[Kind, Callable[..., Batch]] = {
    Kind.INPUT: lambda net, node, x: x,
    Kind.CONVOLUTION: lambda net, node, x: convolved(x, node, net.weights[node.name]),
    Kind.LINEAR: lambda net, node, x: convolved(x, node, net.weights[node.name]),
    Kind.BATCH_NORM: lambda net, node, x: batch_normed(x, net.norms[node.name]),
    Kind.RELU: lambda net, node, x: np.maximum(x, 0),
    Kind.ADD: lambda net, node, x, other: x + other,
    Kind.MAX_POOL: lambda net, node, x: max_pooled(x, node),
    Kind.MEAN_POOL: lambda net, node, x: mean_pooled(x, node),
    Kind.ADAPTIVE_POOL: lambda net, node, x: adaptively_pooled(x, node.size),
    Kind.FLATTEN: lambda net, node, x: reshaped(x, (-1, 1, 1)),
    Kind.DROPOUT: lambda net, node, x: x,
    Kind.TRANSPOSED_CONVOLUTION: lambda net, node, x: convolved_transposed(
        x, node, net.weights[node.name]
    ),
    Kind.GROUP_NORM: lambda net, node, x: group_normed(x, net.norms[node.name], node.groups),
    Kind.LAYER_NORM: lambda net, node, x: layer_normed(x, net.norms[node.name]),
    Kind.RELU6: lambda net, node, x: np.clip(x, 0, 6),
    Kind.LEAKY_RELU: lambda net, node, x: np.where(x > 0, x, x * x.dtype.type(node.slope)),
    Kind.SILU: lambda net, node, x: x * sigmoid(x),
    Kind.HARD_SWISH: lambda net, node, x: x * hard_sigmoid(x),
    Kind.HARD_SIGMOID: lambda net, node, x: hard_sigmoid(x),
    Kind.SIGMOID: lambda net, node, x: sigmoid(x),
    Kind.TANH: lambda net, node, x: np.tanh(x),
    Kind.GELU: lambda net, node, x: gelu(x, node.approximate),
    Kind.SOFTMAX: lambda net, node, x: softmax(x, AXES[node.axis]),
    Kind.MULTIPLY: lambda net, node, x, other: x * other,
    Kind.CONCAT: lambda net, node, x, other: np.concatenate([x, other], AXES[node.axis]),
    Kind.RESHAPE: lambda net, node, x: reshaped(x, (node.channels, *node.size)),
    Kind.PERMUTE: lambda net, node, x: permuted(x, node.order),
    Kind.UPSAMPLE: lambda net, node, x: upsampled(x, node),
    Kind.MATMUL: lambda net, node, x, other: x @ other,
    Kind.PARAMETER: parameter,
    Kind.SLICE: lambda net, node, x: sliced(x, node),
    Kind.SCALE: lambda net, node, x: x * x.dtype.type(node.factor) + x.dtype.type(node.offset),
}
"""How NumPy computes each operation, outside training."""
