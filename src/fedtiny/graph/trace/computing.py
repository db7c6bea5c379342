"""Steps without parameters: activations, dropout, sums and products, attention."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from fedtiny.graph.ir import Kind
from fedtiny.graph.trace.layers import channels_at
from fedtiny.graph.trace.translation import LogProbabilities, Translation, unsupported
from fedtiny.graph.trace.views import View

Number = int | float


def activation(kind: Kind) -> Callable[..., View]:
    """A function of single values; whether in place is all one."""
    return lambda t, x, inplace=False: t.mapped(kind, x)


def leaky_relu(
    t: Translation, x: View, negative_slope: float = 0.01, inplace: bool = False
) -> View:
    """Another slope below zero."""
    return t.mapped(Kind.LEAKY_RELU, x, slope=float(negative_slope))


def gelu(t: Translation, x: View, approximate: str = "none") -> View:
    """Exact, or by tanh."""
    return t.mapped(Kind.GELU, x, approximate=approximate == "tanh")


def clamp(t: Translation, x: View, min: Any = None, max: Any = None, inplace: bool = False) -> View:
    """What is a ReLU, capped at 6 or not."""
    kinds = {(0, None): Kind.RELU, (0, 6): Kind.RELU6}
    if (min, max) not in kinds:
        raise unsupported(f"clamp to ({min}, {max})")
    return t.mapped(kinds[(min, max)], x)


def hardtanh(
    t: Translation, x: View, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False
) -> View:
    """ReLU6 as older networks have it."""
    return clamp(t, x, min_val, max_val)


def softmax(t: Translation, x: View, dim: Any = None, **settings: Any) -> View:
    """Along one axis."""
    if not isinstance(dim, int) or dim % len(x.axes) == 0:
        raise unsupported("softmax without an axis, or over images")
    number, places = t.in_places(x)
    axis = places[dim % len(x.axes) - 1]
    return t.made(t.add(Kind.SOFTMAX, number, axis=axis), places)


def log_softmax(t: Translation, x: View, dim: Any = None, **settings: Any) -> LogProbabilities:
    """Of the logits: it is left out, since cross entropy makes one of its own."""
    if not x.is_flat or dim not in (1, -1, None):
        raise unsupported("log_softmax of anything but the logits")
    return LogProbabilities(x)


def dropout(
    t: Translation, x: View, p: float = 0.5, training: bool = True, inplace: bool = False
) -> View:
    """As a network in eval mode calls it with `training=self.training`."""
    if training:
        raise unsupported("dropout that also acts in eval mode; give it training=self.training")
    return t.mapped(Kind.DROPOUT, x, probability=float(p))


def channel_dropout(
    t: Translation, x: View, p: float = 0.5, training: bool = True, inplace: bool = False
) -> View:
    """The same of channels, as the second axis."""
    dropped = dropout(t, channels_at(t, x, 1), p, training)
    t.nodes[dropped.node] = replace(t.nodes[dropped.node], by_channel=True)
    return dropped


def scale(t: Translation, x: View, factor: Number = 1, offset: Number = 0) -> View:
    """A number times all values, plus another."""
    return t.mapped(Kind.SCALE, x, factor=float(factor), offset=float(offset))


def add(t: Translation, x: Any, other: Any, *, alpha: Number = 1) -> View:
    """Two tensors, or a tensor and a number."""
    if alpha != 1:
        raise unsupported("add with a factor")
    if isinstance(other, Number):
        return scale(t, x, offset=other)
    if isinstance(x, Number):
        return scale(t, other, offset=x)
    return _joined(t, Kind.ADD, x, other)


def subtract(t: Translation, x: Any, other: Any, *, alpha: Number = 1) -> View:
    """A sum with what is negative."""
    return add(t, x, -other if isinstance(other, Number) else scale(t, other, -1), alpha=alpha)


def multiply(t: Translation, x: Any, other: Any) -> View:
    """Two tensors, one of which may have one value a channel, or a tensor and a number."""
    if isinstance(other, Number):
        return scale(t, x, other)
    if isinstance(x, Number):
        return scale(t, other, x)
    return _joined(t, Kind.MULTIPLY, x, other)


def divide(t: Translation, x: Any, other: Any) -> View:
    """By a number."""
    if not isinstance(other, Number) or isinstance(x, Number) or other == 0:
        raise unsupported("a division by anything but a number")
    return scale(t, x, 1 / other)


def _joined(t: Translation, kind: Kind, x: View, other: View) -> View:
    """Two tensors value by value, in the places of the larger one."""
    x, other = (replace(view, expanded=False) for view in (x, other))
    if prod(t.shapes[x.node]) < prod(t.shapes[other.node]):
        x, other = other, x
    if x.axes == other.axes and t.shapes[x.node] == t.shapes[other.node]:
        return replace(t.plain(x), node=t.add(kind, x.node, t.plain(other).node))
    x, other = (ranked(view, max(len(x.axes), len(other.axes))) for view in (x, other))
    number, places = t.in_places(x)
    return t.made(t.add(kind, number, t.arranged(other, places)), places)


def ranked(x: View, rank: int) -> View:
    """A tensor with axes of size 1 before its own, as many as it lacks."""
    return replace(x, axes=((),) * (rank - len(x.axes)) + x.axes)


def matmul(t: Translation, x: View, other: View) -> View:
    """Matrices over the last two axes, perhaps several an image."""
    rank = max(len(x.axes), len(other.axes), 3)
    if rank > 4:
        raise unsupported("matmul of tensors with more than four axes")
    places = (0, 1, 2)[4 - rank :]
    first, second = (t.arranged(ranked(view, rank), places) for view in (x, other))
    return t.made(t.add(Kind.MATMUL, first, second), places)


def attention(
    t: Translation,
    query: View,
    key: View,
    value: View,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> View:
    """Scaled dot-product attention, as the products and the softmax that it is."""
    if attn_mask is not None or dropout_p or is_causal or enable_gqa:
        raise unsupported("attention with a mask, dropout or shared keys")
    *others, last = range(len(key.axes))
    turned = key.permuted([*others[:-1], last, others[-1]])
    scores = matmul(t, query, turned)
    factor = float(query.shape[-1] ** -0.5 if scale is None else scale)
    scaled = t.mapped(Kind.SCALE, scores, factor=factor)
    return matmul(t, softmax(t, scaled, -1), value)
