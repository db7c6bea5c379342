"""A packed model as an nn.Module: dense tensors that hold the kept weights."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedtiny.devices.torch_layers import Transform
from fedtiny.errors import ExportError
from fedtiny.export.network import TinyModel, as_images, as_samples
from fedtiny.graph.arrays import Lowered
from fedtiny.graph.ir import Kind, Node


class PackedNetwork(nn.Module):
    """Gives logits for samples as in training: of byte images also for floats from 0 to 1.

    Layers have the names that they had in the run's network. With `normalise` False, images are
    taken as normalised already.
    """

    def __init__(self, model: TinyModel, *, normalise: bool = True) -> None:
        super().__init__()
        self.classes, self.card, self.shape = model.classes, model.card, model.shape
        self.normalise, self.reads = normalise, model.reads
        self._transform = Transform(model.normalisation.mean, model.normalisation.std)
        self._nodes = model.net.graph.nodes
        for name, node in {n.name: n for n in self._nodes if n.kind in MODULES}.items():
            _put(self, name, MODULES[node.kind](model.net, node))

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes]."""
        outputs: list[Tensor] = []
        start = self._normalised(images) if self.normalise else as_images(images, self.shape)
        for node in self._nodes:
            read = [outputs[i] for i in node.inputs] or [start]
            if node.kind in MODULES:
                outputs.append(self.get_submodule(node.name)(*read))
            else:
                outputs.append(FUNCTIONS[node.kind](node, *read))
        return outputs[-1].flatten(1)

    def _normalised(self, images: Tensor) -> Tensor:
        look = not torch.compiler.is_compiling()  # what is compiled cannot depend on values
        return self._transform.normalise(as_samples(images, self.shape, self.reads, look=look))


def _put(root: nn.Module, name: str, module: nn.Module) -> None:
    """Place a module under a dotted name, with plain modules in between."""
    *way, last = name.split(".")
    try:
        for part in way:
            if part not in root._modules:
                root.add_module(part, nn.Module())
            root = root.get_submodule(part)
        if last in root._modules:
            raise KeyError(last)
        root.add_module(last, module)
    except KeyError as error:
        raise ExportError(f"torch cannot have a layer of the name '{name}'") from error


class _Linear(nn.Linear):
    """A product over the channels at each place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class _Convolution(nn.Conv2d):
    """A convolution that may have other padding at its end than at its start."""

    around: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, self.around) if self.around else x)


class _Transposed(nn.ConvTranspose2d):
    """A transposed convolution that may leave out more at its end than at its start."""

    around: tuple[int, ...] = ()

    def forward(self, x: Tensor, output_size: Any = None) -> Tensor:
        found = super().forward(x, output_size)
        return F.pad(found, [-side for side in self.around]) if self.around else found


def _linear(net: Lowered, node: Node) -> nn.Module:
    weights = net.weights[node.name]
    neurons, inputs = weights.shape
    layer = nn.utils.skip_init(_Linear, inputs, neurons, bias=weights.bias is not None)
    return _filled(layer, weight=weights.dense(), bias=weights.bias)


def _convolution(net: Lowered, node: Node) -> nn.Module:
    weights, (top, left), (bottom, right) = net.weights[node.name], node.padding, node.ends
    transposed, uneven = node.kind == Kind.TRANSPOSED_CONVOLUTION, node.padding_end is not None
    settings: dict[str, Any] = {
        "padding": 0 if uneven else node.padding,
        "dilation": node.dilation,
        "groups": node.groups,
        "bias": weights.bias is not None,
    }
    if transposed:
        settings["output_padding"] = node.output_padding
    kind = _Transposed if transposed else _Convolution
    inputs = weights.shape[0] if transposed else weights.shape[1] * node.groups
    layer = nn.utils.skip_init(kind, inputs, node.channels, node.kernel, node.stride, **settings)
    layer.around = (left, right, top, bottom) if uneven else ()
    return _filled(layer, weight=weights.dense(), bias=weights.bias)


class _AnyNorm(nn.BatchNorm2d):
    """Batch norm over the channels of images and of rows alike."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass


class _ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels at each place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def _norm(net: Lowered, node: Node) -> nn.Module:
    norm = net.norms[node.name]
    count, parts = len(norm.gamma), {"weight": norm.gamma, "bias": norm.beta}
    if node.kind == Kind.GROUP_NORM:
        return _filled(nn.GroupNorm(node.groups, count, eps=norm.epsilon), **parts)
    if node.kind == Kind.LAYER_NORM:
        return _filled(_ChannelNorm(count, eps=norm.epsilon), **parts)
    statistics = {"running_mean": norm.mean, "running_var": norm.variance}
    return _filled(_AnyNorm(count, eps=norm.epsilon), **parts, **statistics)


class _Values(nn.Module):
    """A learned tensor, for every image."""

    def __init__(self, net: Lowered, node: Node) -> None:
        super().__init__()
        values = torch.from_numpy(net.parameters[node.name].copy())
        self.values = nn.Parameter(values.reshape(1, node.channels, *node.size))

    def forward(self, images: Tensor) -> Tensor:
        return self.values.expand(len(images), -1, -1, -1)


def _filled(layer: nn.Module, **arrays: Any) -> nn.Module:
    state = {n: torch.from_numpy(a.copy()) for n, a in arrays.items() if a is not None}
    layer.load_state_dict(state, strict=False)
    return layer


def _max_pool(node: Node, x: Tensor) -> Tensor:
    return F.max_pool2d(x, node.kernel, node.stride, node.padding, ceil_mode=node.ceil)


def _mean_pool(node: Node, x: Tensor) -> Tensor:
    sides = node.kernel, node.stride, node.padding
    return F.avg_pool2d(x, *sides, ceil_mode=node.ceil, count_include_pad=node.count_padding)


def _leaky_relu(node: Node, x: Tensor) -> Tensor:
    return F.leaky_relu(x, node.slope)


def _gelu(node: Node, x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh" if node.approximate else "none")


def _permute(node: Node, x: Tensor) -> Tensor:
    return x.permute(0, *(1 + axis for axis in node.order))


MODULES: dict[Kind, Callable[[Lowered, Node], nn.Module]] = {
    Kind.CONVOLUTION: _convolution,
    Kind.TRANSPOSED_CONVOLUTION: _convolution,
    Kind.LINEAR: _linear,
    Kind.BATCH_NORM: _norm,
    Kind.GROUP_NORM: _norm,
    Kind.LAYER_NORM: _norm,
    Kind.PARAMETER: _Values,
}
FUNCTIONS: dict[Kind, Callable[..., Tensor]] = {
    Kind.INPUT: lambda node, x: x,
    Kind.RELU: lambda node, x: F.relu(x),
    Kind.ADD: lambda node, x, other: x + other,
    Kind.MAX_POOL: _max_pool,
    Kind.MEAN_POOL: _mean_pool,
    Kind.ADAPTIVE_POOL: lambda node, x: F.adaptive_avg_pool2d(x, node.size),
    Kind.FLATTEN: lambda node, x: x.reshape(len(x), -1, 1, 1),
    Kind.DROPOUT: lambda node, x: x,
    Kind.RELU6: lambda node, x: F.relu6(x),
    Kind.LEAKY_RELU: _leaky_relu,
    Kind.SILU: lambda node, x: F.silu(x),
    Kind.HARD_SWISH: lambda node, x: F.hardswish(x),
    Kind.HARD_SIGMOID: lambda node, x: F.hardsigmoid(x),
    Kind.SIGMOID: lambda node, x: torch.sigmoid(x),
    Kind.TANH: lambda node, x: torch.tanh(x),
    Kind.GELU: _gelu,
    Kind.SOFTMAX: lambda node, x: F.softmax(x, 1 + node.axis),
    Kind.MULTIPLY: lambda node, x, other: x * other,
    Kind.CONCAT: lambda node, x, other: torch.cat([x, other], 1 + node.axis),
    Kind.RESHAPE: lambda node, x: x.reshape(len(x), node.channels, *node.size),
    Kind.PERMUTE: _permute,
    Kind.UPSAMPLE: lambda node, x: F.interpolate(x, node.size),
    Kind.MATMUL: lambda node, x, other: x @ other,
    Kind.SLICE: lambda node, x: x.narrow(1 + node.axis, node.start, node.channels),
    Kind.SCALE: lambda node, x: x * node.factor + node.offset,
}
