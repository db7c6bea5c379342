"""Activations in int8: ranges measured on images, weights rounded, and the numbers that follow.

Weights have a scale a filter and no zero point, activations a scale and a zero point a tensor.
docs/export.md has the arithmetic to the last bit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.transforms import ArrayTransform
from fedtiny.errors import ExportError
from fedtiny.export.c_program import fused
from fedtiny.export.c_steps import Step
from fedtiny.export.network import LARGEST_INT8, QParams, TinyModel, as_samples, filters_first
from fedtiny.graph.arithmetic import all_steps
from fedtiny.graph.arrays import Lowered, Weights
from fedtiny.graph.ir import Graph, Kind, Node
from fedtiny.graph.passes import for_inference

SAME = ("concatenate", "slice", "max_pool", "flatten", "permute", "upsample")
"""What moves integers as they are: it gives them at the scale at which it reads them."""
TABLES = (
    *("rectify", "leaky_relu", "silu", "hard_swish", "hard_sigmoid", "sigmoid"),
    *("hyperbolic_tangent", "gelu", "gelu_by_tanh", "scale"),
)
"""Functions of single values, which are looked up."""
NORMS = ("group_norm", "layer_norm")
LEAST, MOST = -128, 127  # of an integer
STEPS = MOST - LEAST
MIN_IMAGES = 8  # ranges of fewer say little
MAX_IMAGES = 512  # that ranges are measured on
AT_ONCE = 32
LARGEST_BIAS = 1 << 29
MARGIN = 4  # how many sums of a layer one step of its result spans, at least
LARGEST_RATIO = 64  # of the scale of a term to that of the sum
LARGEST_SCALED, LARGEST_SHIFTED = 1 << 14, 1 << 18  # steps that a norm's gamma and beta may be
FINEST_SHARE = 2.0**-21  # that a softmax may have as the step of its result


def quantize(model: TinyModel, images: NDArray[np.generic]) -> TinyModel:
    """The model with int8 activations, their ranges measured on images as they come.

    Its weights are int8 times the scale of their filter, to the bit.
    """
    graph = for_inference(model.net.graph)
    images = as_samples(images, model.shape, model.reads)
    if len(images) < MIN_IMAGES:
        raise ExportError(
            f"int8 activations are calibrated on {MIN_IMAGES} images or more, got {len(images)}"
        )
    net = _norms_as_layers(replace(model.net, graph=graph))
    steps = list(fused(net.graph))
    chosen = images[np.linspace(0, len(images) - 1, min(len(images), MAX_IMAGES)).astype(int)]
    prepare = ArrayTransform(model.normalisation.mean, model.normalisation.std)
    ranges = _measured(net, steps, prepare.normalise(chosen))
    activations = _qparams(steps, ranges, net)
    rounded = _rounded(net, steps, activations)
    return replace(model, net=rounded, held="int8", activations=activations)


def is_logits(step: Step, steps: Sequence[Step]) -> bool:
    """Whether a step is the linear layer that gives the logits, as 32-bit sums."""
    last = step.gives == steps[-1].gives
    return last and step.action == "connect" and step.limit == "LINEAR"


def _norms_as_layers(net: Lowered) -> Lowered:
    """Batch norms that follow no layer as depthwise convolutions of one pixel."""
    nodes, norms = [], dict(net.norms)
    weights = {node.name: net.weights[node.name] for node in net.graph.layers.values()}
    for number, node in enumerate(net.graph.nodes):
        if node.kind != Kind.BATCH_NORM:
            nodes.append(node)
            continue
        count = net.graph.shapes[number][0]
        layer = Node(Kind.CONVOLUTION, node.inputs, node.name, count, groups=count, bias=True)
        nodes.append(layer)
        if (norm := norms.pop(node.name, None)) is not None:
            scale, shift = (part.astype(np.float32) for part in norm.scale_and_shift())
            weights[node.name] = Weights((count, 1, 1, 1), None, scale, shift)
    return replace(net, graph=Graph(tuple(nodes)), weights=weights, norms=norms)


Ranges = dict[int, tuple[float, float]]


def _measured(net: Lowered, steps: Iterable[Step], normalised: NDArray[np.float32]) -> Ranges:
    """The least and the largest value that each step gives; 0 is always between them."""
    wanted = [step.gives for step in steps]
    found = dict.fromkeys(wanted, (0.0, 0.0))
    for start in range(0, len(normalised), AT_ONCE):
        values = all_steps(net, normalised[start : start + AT_ONCE].swapaxes(0, 1))
        for number in wanted:
            low, high = found[number]
            low, high = (
                min(low, float(values[number].min())),
                max(high, float(values[number].max())),
            )
            found[number] = low, high
    if not np.isfinite(list(found.values())).all():
        raise ExportError("the model gives NaN or infinity on the images that calibrate it")
    return found


def _qparams(steps: Sequence[Step], ranges: Ranges, net: Lowered) -> dict[int, QParams]:
    """The scale and zero point of each value but the logits.

    Values that steps move as they are share them. A scale is widened where one step of it would be
    finer than the sums that it is made from.
    """
    groups = _groups(steps)
    joined = {
        group: _union([ranges[v] for v in groups if groups[v] == group])
        for group in set(groups.values())
    }
    for _ in steps:
        found = {value: _of_range(*joined[groups[value]]) for value in groups}
        narrow = [s for s in steps if found[s.gives].scale < 0.999 * _finest(s, found, net)]
        if not narrow:
            break
        for step in narrow:
            low, high = joined[groups[step.gives]]
            joined[groups[step.gives]] = low, max(high, STEPS * _finest(step, found, net) + low)
    if is_logits(steps[-1], steps):
        del found[steps[-1].gives]
    return found


def _groups(steps: Iterable[Step]) -> dict[int, int]:
    """By value, the first of those that have its scale."""
    groups: dict[int, int] = {}
    for step in steps:
        groups[step.gives] = step.gives
        if step.action in SAME:
            old = {groups[value] for value in (*step.reads, step.gives)}
            groups.update({v: min(old) for v, group in groups.items() if group in old})
    return groups


def _union(ranges: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def _of_range(low: float, high: float) -> QParams:
    """The scale that spreads a range over 256 integers, one of which is exactly 0.

    >>> _of_range(0.0, 25.5), _of_range(-1.28, 1.27).zero_point
    (QParams(scale=0.10000000149011612, zero_point=-128), 0)
    """
    scale = float(np.float32((high - low) / STEPS))
    if scale < np.finfo(np.float32).tiny:
        return QParams(1.0, LEAST)
    return QParams(scale, int(np.clip(np.rint(LEAST - low / scale), LEAST, MOST)))


def _finest(step: Step, found: Mapping[int, QParams], net: Lowered) -> float:
    """The least scale that a step's result may have."""
    read = [found[value].scale for value in step.reads]
    if step.action.startswith("multiply"):
        return MARGIN * prod(read)
    if step.action == "softmax":
        return FINEST_SHARE
    if step.action in NORMS:
        norm = net.norms[step.node.name]
        gamma, beta = (float(np.abs(part).max()) for part in (norm.gamma, norm.beta))
        return max(gamma / LARGEST_SCALED, beta / LARGEST_SHIFTED)
    if step.action in ("add", "mean_pool", "adaptive_pool"):
        return max(read) / LARGEST_RATIO
    if step.convolves or step.action == "connect":
        _, scales = short_scales(filters_first(step.node, net.weights[step.node.name]))
        return max([MARGIN * read[0] * float(scales.max()), *(r / LARGEST_RATIO for r in read[1:])])
    return 0.0


def short_scales(weights: Weights) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
    """Which filters have weights, and what their integers are multiplied by, 0 for the others.

    A scale has 16 significant bits, so that its product with an integer is exact in float32:
    rounding what is rounded already changes nothing.
    """
    largest = np.zeros(weights.shape[0], dtype=np.float32)
    np.maximum.at(largest, weights.filters, np.abs(weights.values))
    parts, exponents = np.frexp(largest.astype(np.float64) / LARGEST_INT8)
    scales = np.ldexp(np.rint(parts * (1 << 16)) / (1 << 16), exponents).astype(np.float32)
    return largest > 0, scales


def _rounded(net: Lowered, steps: Iterable[Step], found: Mapping[int, QParams]) -> Lowered:
    """Weights as integers times scales; those that do not show beside a filter's bias are zero.

    A weight adds at most 2^15 steps of its filter's sums, where the bias is 2^29 of them or more.
    """
    rounded = dict(net.weights)
    for step in steps:
        if step.node.name in net.weights:
            node, read = step.node, found[step.reads[0]].scale
            made = _rounded_layer(filters_first(node, rounded[node.name]), read)
            rounded[node.name] = filters_first(node, made)
    return replace(net, weights=rounded)


def _rounded_layer(weights: Weights, read: float) -> Weights:
    used, scales = short_scales(weights)
    if weights.bias is not None:
        used = used & (np.abs(weights.bias) < LARGEST_BIAS * read * scales.astype(np.float64))
    by_weight = np.where(used, scales, np.float32(1))[weights.filters]
    integers = np.rint(weights.values / by_weight).clip(-LARGEST_INT8, LARGEST_INT8)
    return replace(weights, values=integers * by_weight * used[weights.filters])
