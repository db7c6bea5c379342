"""Steps that hold parameters: convolutions, linear layers and norms."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import nn

from fedtiny.graph.ir import Kind, Pair
from fedtiny.graph.trace.translation import PLACES, Parameter, Translation, unsupported
from fedtiny.graph.trace.views import View

NO_PAD = (0, 0, 0, 0)


def pair(value: Any, axes: int, fill: int) -> Pair:
    """Rows and columns of a setting; a signal of one axis has one row."""
    sides = tuple(value) if isinstance(value, tuple | list) else (value,) * axes
    first, second = (fill, *sides)[-2:] if len(sides) == 1 else sides
    return int(first), int(second)


def convolution(t: Translation, module: Any, x: View) -> View:
    """Conv1d and Conv2d, or the same transposed; zeros that were put around `x` are padding."""
    if trouble := _trouble(module):
        raise unsupported(f"'{t.module}' ({type(module).__name__} with {trouble})")
    axes = len(module.kernel_size)
    transposed = module.transposed
    sides = {
        "kernel": pair(module.kernel_size, axes, 1),
        "stride": pair(module.stride, axes, 1),
        "dilation": pair(module.dilation, axes, 1),
        "output_padding": pair(module.output_padding, axes, 0),
    }
    start, end = _padding(module, axes, NO_PAD if transposed else x.pad)
    source = t.arranged(x if transposed else replace(x, pad=NO_PAD), PLACES[axes + 2])
    number = t.add(
        Kind.TRANSPOSED_CONVOLUTION if transposed else Kind.CONVOLUTION,
        source,
        name=t.module,
        channels=module.out_channels,
        groups=module.groups,
        bias=module.bias is not None,
        padding=start,
        padding_end=None if start == end else end,
        **sides,
    )
    return t.made(number, PLACES[axes + 2])


def _trouble(module: Any) -> str:
    return "" if module.padding_mode == "zeros" else f"padding by {module.padding_mode}"


def _padding(module: Any, axes: int, around: tuple[int, int, int, int]) -> tuple[Pair, Pair]:
    """Padding at the start and at the end, by axis; torch has 'same' grow at the end first."""
    start = end = (0, 0)
    if module.padding == "same":
        dilation, kernel = pair(module.dilation, axes, 1), pair(module.kernel_size, axes, 1)
        rows, columns = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        start, end = (rows // 2, columns // 2), (rows - rows // 2, columns - columns // 2)
    elif module.padding != "valid":
        start = end = pair(module.padding, axes, 0)
    left, right, top, bottom = around
    return (start[0] + top, start[1] + left), (end[0] + bottom, end[1] + right)


def linear(t: Translation, module: Any, x: View) -> View:
    """A product over the last axis, whatever the others are."""
    settings = {"channels": module.out_features, "bias": module.bias is not None}
    return over_last(t, Kind.LINEAR, x, name=t.module, **settings)


def over_last(t: Translation, kind: Kind, x: View, **fields: Any) -> View:
    """A step over the last axis of a tensor, which must be the channels of a node."""
    x = channels_at(t, x, len(x.axes) - 1)
    number = t.add(kind, x.node, **fields)
    channels = View.of(number, t.shapes[number], (0,)).axes[1]
    return replace(x, node=number, axes=(*x.axes[:-1], channels))


def channels_at(t: Translation, x: View, axis: int) -> View:
    """The tensor as a view of a node that has this axis as its channels."""
    shape = t.shapes[t.plain(x).node]
    if x.place(axis, shape) == 0 or (x.shape[axis] == 1 and shape[0] == 1):
        return x
    others = [1, 2][: len(x.axes) - 2]
    if len(x.axes) - 2 > 2:
        raise unsupported(f"a tensor with {len(x.axes)} axes in '{t.module}'")
    places = [*others[: axis - 1], 0, *others[axis - 1 :]]
    return t.made(t.arranged(x, places), places)


def linear_function(t: Translation, x: View, weight: Any, bias: Any = None) -> View:
    """F.linear with the parameters of a module."""
    t.module = _owner(weight, bias)
    return linear(t, SimpleNamespace(out_features=weight.shape[0], bias=bias), x)


def convolution_function(
    t: Translation,
    x: View,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> View:
    """F.conv1d and F.conv2d with the parameters of a module."""
    t.module = _owner(weight, bias)
    filters, _, *kernel = weight.shape
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    fixed = {"output_padding": 0, "padding_mode": "zeros", "transposed": False}
    sizes = {"kernel_size": kernel, "out_channels": filters, "bias": bias}
    return convolution(t, SimpleNamespace(**settings, **fixed, **sizes), x)


def _owner(weight: Any, bias: Any) -> str:
    """The module whose weight and bias these are."""
    name = weight.name.removesuffix(".weight") if isinstance(weight, Parameter) else ""
    own = bias is None or (isinstance(bias, Parameter) and bias.name == f"{name}.bias")
    if not name or weight.name == name or not own:
        raise unsupported("a layer whose weights are computed, or are those of several modules")
    return str(name)


def batch_norm(t: Translation, module: Any, x: View) -> View:
    """BatchNorm1d of rows and of signals, BatchNorm2d of images."""
    if not (module.affine and module.track_running_stats and module.momentum is not None):
        raise unsupported(f"'{t.module}' (batch norm without scale, statistics or momentum)")
    ranks = (4,) if isinstance(module, nn.BatchNorm2d) else (2, 3)
    if len(x.axes) not in ranks:
        raise unsupported(f"'{t.module}' (batch norm of a tensor of this rank)")
    numbers = {"epsilon": float(module.eps), "momentum": float(module.momentum)}
    return t.mapped(Kind.BATCH_NORM, channels_at(t, x, 1), name=t.module, **numbers)


def group_norm(t: Translation, module: Any, x: View) -> View:
    """GroupNorm, with the channels as the second axis."""
    if not module.affine:
        raise unsupported(f"'{t.module}' (group norm without scale)")
    settings = {"groups": module.num_groups, "epsilon": float(module.eps)}
    return t.mapped(Kind.GROUP_NORM, channels_at(t, x, 1), name=t.module, **settings)


def layer_norm(t: Translation, module: Any, x: View) -> View:
    """LayerNorm over the last axis."""
    if module.weight is None or module.bias is None:
        raise unsupported(f"'{t.module}' (layer norm without scale or shift)")
    if len(module.normalized_shape) > 1:
        raise unsupported(f"'{t.module}' (layer norm over more than the last axis)")
    return over_last(t, Kind.LAYER_NORM, x, name=t.module, epsilon=float(module.eps))
