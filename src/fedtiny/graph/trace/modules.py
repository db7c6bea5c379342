"""Modules of torch: which step each one is."""

from collections.abc import Callable
from typing import Any

from torch import nn

from fedtiny.graph.ir import Kind
from fedtiny.graph.trace import computing, layers, pooling, reshaping
from fedtiny.graph.trace.computing import activation
from fedtiny.graph.trace.translation import LogProbabilities, Translation, unsupported
from fedtiny.graph.trace.views import View

Form = Callable[[Translation, Any, View], View | LogProbabilities]
POOL = ("kernel_size", "stride", "padding", "ceil_mode")


def _by(form: Callable[..., View | LogProbabilities], *settings: str) -> Form:
    """A module that is a function with these of its attributes."""
    return lambda t, module, x: form(t, x, **{name: getattr(module, name) for name in settings})


def _plain(kind: Kind) -> Form:
    return _by(activation(kind))


MODULES: dict[type[nn.Module], Form] = {
    **dict.fromkeys((nn.Conv1d, nn.Conv2d), layers.convolution),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d), layers.convolution),
    nn.Linear: layers.linear,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), layers.batch_norm),
    nn.GroupNorm: layers.group_norm,
    nn.LayerNorm: layers.layer_norm,
    nn.ReLU: _plain(Kind.RELU),
    nn.ReLU6: _plain(Kind.RELU6),
    nn.SiLU: _plain(Kind.SILU),
    nn.Hardswish: _plain(Kind.HARD_SWISH),
    nn.Hardsigmoid: _plain(Kind.HARD_SIGMOID),
    nn.Sigmoid: _plain(Kind.SIGMOID),
    nn.Tanh: _plain(Kind.TANH),
    nn.LeakyReLU: _by(computing.leaky_relu, "negative_slope"),
    nn.GELU: _by(computing.gelu, "approximate"),
    nn.Hardtanh: _by(computing.hardtanh, "min_val", "max_val"),
    nn.Softmax: _by(computing.softmax, "dim"),
    nn.LogSoftmax: _by(computing.log_softmax, "dim"),
    nn.MaxPool1d: _by(pooling.max_pool(1), *POOL, "dilation", "return_indices"),
    nn.MaxPool2d: _by(pooling.max_pool(2), *POOL, "dilation", "return_indices"),
    nn.AvgPool1d: _by(pooling.mean_pool(1), *POOL, "count_include_pad"),
    nn.AvgPool2d: _by(pooling.mean_pool(2), *POOL, "count_include_pad", "divisor_override"),
    nn.AdaptiveAvgPool1d: _by(pooling.adaptive_mean(1), "output_size"),
    nn.AdaptiveAvgPool2d: _by(pooling.adaptive_mean(2), "output_size"),
    nn.AdaptiveMaxPool1d: _by(pooling.adaptive_max(1), "output_size", "return_indices"),
    nn.AdaptiveMaxPool2d: _by(pooling.adaptive_max(2), "output_size", "return_indices"),
    nn.Upsample: _by(pooling.upsample, "size", "scale_factor", "mode"),
    nn.UpsamplingNearest2d: _by(pooling.upsample, "size", "scale_factor", "mode"),
    nn.Dropout: lambda t, module, x: computing.dropout(t, x, module.p, training=False),
    **dict.fromkeys(
        (nn.Dropout1d, nn.Dropout2d),
        lambda t, module, x: computing.channel_dropout(t, x, module.p, training=False),
    ),
    nn.Identity: lambda t, module, x: x,
    nn.Flatten: _by(reshaping.flatten, "start_dim", "end_dim"),
    nn.Unflatten: lambda t, m, x: reshaping.unflatten(t, x, m.dim, m.unflattened_size),
    nn.ChannelShuffle: _by(reshaping.channel_shuffle, "groups"),
    **dict.fromkeys(
        (nn.ZeroPad1d, nn.ZeroPad2d), lambda t, module, x: reshaping.pad(t, x, module.padding)
    ),
    **dict.fromkeys(
        (nn.ConstantPad1d, nn.ConstantPad2d),
        lambda t, module, x: reshaping.pad(t, x, module.padding, value=module.value),
    ),
}
TAKE_ZEROS_AROUND = (layers.convolution, MODULES[nn.ZeroPad2d], MODULES[nn.ConstantPad2d])


def module(t: Translation, module: nn.Module, *read: View) -> View | LogProbabilities:
    """What a module gives."""
    form = next((MODULES[kind] for kind in type(module).__mro__ if kind in MODULES), None)
    if form is None or len(read) != 1:
        raise unsupported(f"'{t.module}' ({type(module).__name__})")
    return form(t, module, read[0] if form in TAKE_ZEROS_AROUND else t.plain(read[0]))
