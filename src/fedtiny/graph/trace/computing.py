"""Steps without parameters: activations, sums and products, pools, attention."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from fedtiny.graph.ir import Kind, Pair
from fedtiny.graph.trace.layers import pair
from fedtiny.graph.trace.translation import PLACES, Translation, unsupported
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
    number, places = t.settled(x)
    axis = places[dim % len(x.axes) - 1]
    return t.made(t.add(Kind.SOFTMAX, number, axis=axis), places)


def dropout(
    t: Translation, x: View, p: float = 0.5, training: bool = True, inplace: bool = False
) -> View:
    """As a network in eval mode calls it with `training=self.training`."""
    if training:
        raise unsupported("dropout that also acts in eval mode; give it training=self.training")
    return t.mapped(Kind.DROPOUT, x, probability=float(p))


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
    number, places = t.settled(x)
    return t.made(t.add(kind, number, t.arranged(other, places)), places)


def ranked(x: View, rank: int) -> View:
    """A tensor with axes of size 1 before its own, as many as it lacks."""
    return replace(x, axes=((),) * (rank - len(x.axes)) + x.axes)


def max_pool(axes: int) -> Callable[..., View]:
    """The largest of each window; `axes` are those that windows have."""

    def pooled(
        t: Translation,
        x: View,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> View:
        if return_indices or pair(dilation, axes, 1) != (1, 1):
            raise unsupported("max pooling with indices or dilation")
        return _pooled(
            t, Kind.MAX_POOL, x, axes, ceil_mode, kernel=kernel_size, stride=stride, padding=padding
        )

    return pooled


def mean_pool(axes: int) -> Callable[..., View]:
    """The mean of each window."""

    def pooled(
        t: Translation,
        x: View,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> View:
        if divisor_override is not None:
            raise unsupported("mean pooling with divisor_override")
        return _pooled(
            t,
            Kind.MEAN_POOL,
            x,
            axes,
            ceil_mode,
            count_include_pad,
            kernel=kernel_size,
            stride=stride,
            padding=padding,
        )

    return pooled


def _pooled(
    t: Translation, kind: Kind, x: View, axes: int, ceil: bool, counted: bool = True, **sides: Any
) -> View:
    sides["stride"] = sides["stride"] or sides["kernel"]
    fills = {"kernel": 1, "stride": 1, "padding": 0}
    window = {name: pair(value, axes, fills[name]) for name, value in sides.items()}
    source = t.arranged(x, PLACES[axes + 2])
    number = t.add(kind, source, ceil=ceil, count_padding=counted, **window)
    return t.made(number, PLACES[axes + 2])


def _size(t: Translation, x: View, axes: int, asked: Any) -> Pair:
    """The rows and columns of an adaptive pool; None keeps a side."""
    sides = tuple(asked) if isinstance(asked, tuple | list) else (asked,) * axes
    kept = x.shape[-axes:]
    return pair([k if s is None else s for s, k in zip(sides, kept, strict=True)], axes, 1)


def adaptive_mean(axes: int) -> Callable[..., View]:
    """Means over so many rows and columns."""

    def pooled(t: Translation, x: View, output_size: Any) -> View:
        source = t.arranged(x, PLACES[axes + 2])
        number = t.add(Kind.ADAPTIVE_POOL, source, size=_size(t, x, axes, output_size))
        return t.made(number, PLACES[axes + 2])

    return pooled


def adaptive_max(axes: int) -> Callable[..., View]:
    """The largest of so many rows and columns, where they are all alike."""

    def pooled(t: Translation, x: View, output_size: Any, return_indices: bool = False) -> View:
        source, size = t.arranged(x, PLACES[axes + 2]), _size(t, x, axes, output_size)
        sides = t.shapes[source][1:]
        if return_indices or any(side % part for side, part in zip(sides, size, strict=True)):
            raise unsupported("adaptive max pooling with indices or into uneven windows")
        kernel = sides[0] // size[0], sides[1] // size[1]
        number = t.add(Kind.MAX_POOL, source, kernel=kernel, stride=kernel)
        return t.made(number, PLACES[axes + 2])

    return pooled


def mean(t: Translation, x: View, dim: Any = None, keepdim: bool = False) -> View:
    """Over rows, columns or tokens: every axis but images and channels."""
    asked = dim if isinstance(dim, tuple | list) else () if dim is None else (dim,)
    axes = [d % len(x.axes) for d in asked]
    shape = t.shapes[x.node]
    parts = [part for axis in axes for part in x.axes[axis]]
    if not all(part.axis > 0 and part.size == shape[part.axis] for part in parts):
        number, places = t.settled(x)
        x, shape = t.made(number, places), t.shapes[number]
        parts = [part for axis in axes for part in x.axes[axis]]
    if not axes or not all(part.axis > 0 for part in parts):
        raise unsupported(f"mean over {dim}; only over the pixels, (2, 3), or over tokens")
    over = {part.axis for part in parts}
    rows, columns = (1 if place in over else shape[place] for place in (1, 2))
    number = t.add(Kind.ADAPTIVE_POOL, x.node, size=(rows, columns))
    left = [() if i in axes else a for i, a in enumerate(x.axes) if keepdim or i not in axes]
    pooled = View(number, tuple(left))
    return t.row(pooled) if pooled.is_flat and len(x.axes) > 2 else pooled


def upsample(
    t: Translation,
    x: View,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    **settings: Any,
) -> View:
    """Nearest values, by whole factors."""
    if mode != "nearest" or any(settings.values()):
        raise unsupported(f"upsampling by {mode}")
    axes = len(x.axes) - 2
    factors = pair(1 if scale_factor is None else scale_factor, axes, 1)
    source = t.arranged(x, PLACES[len(x.axes)])
    _, rows, columns = t.shapes[source]
    scaled = (rows * factors[0], columns * factors[1])
    number = t.add(Kind.UPSAMPLE, source, size=scaled if size is None else pair(size, axes, 1))
    return t.made(number, PLACES[len(x.axes)])


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
