"""Functions and methods of tensors: which step, or which change of axes, each one is."""

import builtins
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from fedtiny.graph.ir import Kind
from fedtiny.graph.trace import computing, layers, pooling, reshaping
from fedtiny.graph.trace.translation import Parameter, Translation, unsupported
from fedtiny.graph.trace.views import View

Spelling = str | Callable[..., Any]
OF_NUMBERS = ("_operator", "builtins", "math")  # modules whose functions of numbers need no step

SPELLINGS: dict[Callable[..., Any], tuple[Spelling, ...]] = {
    computing.activation(Kind.RELU): (F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"),
    computing.activation(Kind.RELU6): (F.relu6,),
    computing.activation(Kind.SILU): (F.silu,),
    computing.activation(Kind.HARD_SWISH): (F.hardswish,),
    computing.activation(Kind.HARD_SIGMOID): (F.hardsigmoid,),
    computing.activation(Kind.SIGMOID): (F.sigmoid, torch.sigmoid, "sigmoid", "sigmoid_"),
    computing.activation(Kind.TANH): (F.tanh, torch.tanh, "tanh", "tanh_"),
    computing.leaky_relu: (F.leaky_relu, F.leaky_relu_),
    computing.gelu: (F.gelu,),
    computing.clamp: (torch.clamp, torch.clip, "clamp", "clamp_", "clip", "clip_"),
    computing.hardtanh: (F.hardtanh, F.hardtanh_),
    computing.softmax: (F.softmax, torch.softmax, "softmax"),
    computing.log_softmax: (F.log_softmax, torch.log_softmax, "log_softmax"),
    computing.dropout: (F.dropout, torch.dropout),
    computing.channel_dropout: (F.dropout1d, F.dropout2d),
    computing.add: (operator.add, operator.iadd, torch.add, "add", "add_"),
    computing.subtract: (operator.sub, operator.isub, torch.sub, "sub", "sub_"),
    computing.multiply: (operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_"),
    computing.divide: (operator.truediv, operator.itruediv, torch.div, "div", "div_"),
    pooling.max_pool(1): (F.max_pool1d, torch.max_pool1d),
    pooling.max_pool(2): (F.max_pool2d, torch.max_pool2d),
    pooling.mean_pool(1): (F.avg_pool1d,),
    pooling.mean_pool(2): (F.avg_pool2d,),
    pooling.adaptive_mean(1): (F.adaptive_avg_pool1d,),
    pooling.adaptive_mean(2): (F.adaptive_avg_pool2d,),
    pooling.adaptive_max(1): (F.adaptive_max_pool1d,),
    pooling.adaptive_max(2): (F.adaptive_max_pool2d,),
    pooling.mean: (torch.mean, "mean"),
    pooling.upsample: (F.interpolate, F.upsample),
    computing.matmul: (operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"),
    computing.attention: (F.scaled_dot_product_attention,),
    layers.linear_function: (F.linear,),
    layers.convolution_function: (F.conv1d, F.conv2d),
    reshaping.reshape: (torch.reshape, "reshape", "view"),
    reshaping.flatten: (torch.flatten, "flatten"),
    reshaping.unflatten: (torch.unflatten, "unflatten"),
    reshaping.squeeze: (torch.squeeze, "squeeze"),
    reshaping.unsqueeze: (torch.unsqueeze, "unsqueeze"),
    reshaping.permute: (torch.permute, "permute"),
    reshaping.transpose: (torch.transpose, torch.swapaxes, "transpose", "swapaxes"),
    reshaping.same: ("contiguous", "clone", "float", torch.clone),
    reshaping.expand: ("expand",),
    reshaping.expand_as: ("expand_as",),
    reshaping.repeat: ("repeat",),
    reshaping.cat: (torch.cat, torch.concat, torch.concatenate),
    reshaping.narrow: (torch.narrow, "narrow"),
    reshaping.select: (torch.select, "select"),
    reshaping.getitem: (operator.getitem,),
    reshaping.chunk: (torch.chunk, "chunk"),
    reshaping.split: (torch.split, "split"),
    reshaping.unbind: (torch.unbind, "unbind"),
    reshaping.pad: (F.pad, torch._C._nn.pad),
    reshaping.channel_shuffle: (torch.channel_shuffle, F.channel_shuffle),
}
FUNCTIONS = {spelling: form for form, known in SPELLINGS.items() for spelling in known}
AS_IT_IS = (computing.multiply, layers.convolution_function, reshaping.pad)
"""These take tensors with zeros around, or expanded ones."""
WITH_PARAMETERS = (layers.linear_function, layers.convolution_function)
"""These take parameters that no step has read."""
SHAPES = {"size", "dim"}


def function(
    t: Translation, target: Spelling, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a function of tensors, or one of numbers, gives."""
    if target is builtins.getattr or target in SHAPES:
        return _of_shape(t, target, args, kwargs)
    if not any(map(_is_tensor, (*args, *kwargs.values()))):
        return _of_numbers(target, args, kwargs)
    if target is operator.getitem and isinstance(args[0], tuple | list):
        return args[0][args[1]]
    form = FUNCTIONS.get(target)
    if form is None:
        raise unsupported(f"'{_name(target)}'{f' ({t.module})' if t.module else ''}")
    if "input" in kwargs:
        args, kwargs = (kwargs["input"], *args), {n: v for n, v in kwargs.items() if n != "input"}
    args = tuple(_taken(t, form, value) for value in args)
    kwargs = {name: _taken(t, form, value) for name, value in kwargs.items()}
    try:
        inspect.signature(form).bind(t, *args, **kwargs)
    except TypeError as error:
        raise unsupported(f"'{_name(target)}' with these arguments ({error})") from error
    return form(t, *args, **kwargs)


def _is_tensor(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_tensor, value))
    return isinstance(value, View | Parameter)


def _taken(t: Translation, form: Callable[..., Any], value: Any) -> Any:
    """An argument as its form takes it."""
    if not isinstance(value, View | Parameter):
        return value
    if isinstance(value, Parameter) and form in WITH_PARAMETERS:
        return value
    view = t.view(value)
    return view if form in AS_IT_IS else t.plain(view)


def _of_numbers(target: Spelling, args: Any, kwargs: dict[str, Any]) -> Any:
    """Shapes are known, so what is computed of them is."""
    if target is torch._assert:
        return None
    if isinstance(target, str) or getattr(target, "__module__", "") not in OF_NUMBERS:
        raise unsupported(f"'{_name(target)}'")
    return target(*args, **kwargs)


def _of_shape(
    t: Translation, target: Spelling, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A tensor's shape, one size of it, or its rank."""
    tensor, *more = (*args, *kwargs.values())
    asked = target if target in SHAPES else more.pop(0)
    shape = tensor.shape if isinstance(tensor, Parameter) else t.plain(tensor).shape
    known: dict[str, Any] = {"shape": shape, "size": shape, "dim": len(shape), "ndim": len(shape)}
    if asked == "mT":
        return reshaping.transpose(t, t.plain(t.view(tensor)), -2, -1)
    if asked not in known:
        raise unsupported(f"'{asked}' of a tensor")
    return shape[more[0]] if asked == "size" and more else known[asked]


def _name(target: Spelling) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
