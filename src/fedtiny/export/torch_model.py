"""A packed model as an nn.Module: dense tensors that hold the kept weights."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedtiny.devices.torch_layers import Transform
from fedtiny.errors import ExportError
from fedtiny.export.network import TinyModel, check_images
from fedtiny.graph.arithmetic import Lowered
from fedtiny.graph.ir import Kind, Node


class PackedNetwork(nn.Module):
    """Gives logits for images [N, C, H, W]: uint8 from 0 to 255, or float from 0 to 1.

    Layers have the names that they had in the run's network. With `normalise` False, images are
    taken as normalised already.
    """

    def __init__(self, model: TinyModel, *, normalise: bool = True) -> None:
        super().__init__()
        self.classes, self.card, self.shape = model.classes, model.card, model.shape
        self.normalise = normalise
        self._transform = Transform(model.normalisation.mean, model.normalisation.std)
        self._nodes = model.net.graph.nodes
        for node in self._nodes:
            if node.kind in MODULES:
                _put(self, node.name, MODULES[node.kind](model.net, node))

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes]."""
        check_images(images.shape, self.shape)
        outputs: list[Tensor] = []
        start = self._transform.normalise(images) if self.normalise else images
        for node in self._nodes:
            read = [outputs[i] for i in node.inputs] or [start]
            if node.kind in MODULES:
                outputs.append(self.get_submodule(node.name)(*read))
            else:
                outputs.append(FUNCTIONS[node.kind](node, *read))
        return outputs[-1]


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


def _layer(net: Lowered, node: Node) -> nn.Module:
    weights = net.weights[node.name]
    filters, inputs = weights.shape[:2]
    bias = weights.bias is not None
    layer: nn.Module
    if node.kind == Kind.LINEAR:
        layer = nn.utils.skip_init(nn.Linear, inputs, filters, bias=bias)
    else:
        sides = node.kernel, node.stride, node.padding
        layer = nn.utils.skip_init(nn.Conv2d, inputs, filters, *sides, bias=bias)
    return _filled(layer, weight=weights.dense(), bias=weights.bias)


def _norm(net: Lowered, node: Node) -> nn.Module:
    norm = net.norms[node.name]
    layer = _AnyNorm(len(norm.gamma), eps=norm.epsilon)
    statistics = {"running_mean": norm.mean, "running_var": norm.variance}
    return _filled(layer, weight=norm.gamma, bias=norm.beta, **statistics)


class _AnyNorm(nn.BatchNorm2d):
    """Batch norm over the channels of images and of rows alike."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass


def _filled(layer: nn.Module, **arrays: Any) -> nn.Module:
    state = {n: torch.from_numpy(a.copy()) for n, a in arrays.items() if a is not None}
    layer.load_state_dict(state, strict=False)
    return layer


def _mean_pool(node: Node, x: Tensor) -> Tensor:
    sides = node.kernel, node.stride, node.padding
    return F.avg_pool2d(x, *sides, count_include_pad=node.count_padding)


MODULES: dict[Kind, Callable[[Lowered, Node], nn.Module]] = {
    Kind.CONVOLUTION: _layer,
    Kind.LINEAR: _layer,
    Kind.BATCH_NORM: _norm,
}
FUNCTIONS: dict[Kind, Callable[..., Tensor]] = {
    Kind.INPUT: lambda node, x: x,
    Kind.RELU: lambda node, x: F.relu(x),
    Kind.ADD: lambda node, x, other: x + other,
    Kind.MAX_POOL: lambda node, x: F.max_pool2d(x, node.kernel, node.stride, node.padding),
    Kind.MEAN_POOL: _mean_pool,
    Kind.ADAPTIVE_POOL: lambda node, x: F.adaptive_avg_pool2d(x, node.size),
    Kind.FLATTEN: lambda node, x: x.flatten(1),
    Kind.DROPOUT: lambda node, x: x,
}
