"""Pools, means over space and nearest upsampling."""

from collections.abc import Callable
from typing import Any

from fedtiny.graph.ir import Kind, Pair
from fedtiny.graph.trace.layers import pair
from fedtiny.graph.trace.translation import PLACES, Translation, unsupported
from fedtiny.graph.trace.views import View


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
        number, places = t.in_places(x)
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
