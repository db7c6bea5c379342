"""A packed model as an nn.Module: dense tensors that hold the kept weights."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtiny.data.augment import Transform
from fedtiny.errors import ExportError
from fedtiny.export.network import Norm, TinyModel, Weights, check_images
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
            if node.kind in (Kind.CONVOLUTION, Kind.LINEAR):
                _put(self, node.name, _layer(node, model.net.weights[node.name]))
            elif node.kind == Kind.BATCH_NORM:
                _put(self, node.name, _norm(model.net.norms[node.name]))

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes]."""
        check_images(images.shape, self.shape)
        given: list[Tensor] = []
        start = self._transform.normalise(images) if self.normalise else images
        for node in self._nodes:
            given.append(self._step(node, [given[i] for i in node.inputs] or [start]))
        return given[-1]

    def _step(self, node: Node, read: list[Tensor]) -> Tensor:
        x = read[0]
        match node.kind:
            case Kind.CONVOLUTION | Kind.LINEAR | Kind.BATCH_NORM:
                return self.get_submodule(node.name)(x)  # type: ignore[no-any-return]
            case Kind.RELU:
                return F.relu(x)
            case Kind.ADD:
                return read[0] + read[1]
            case Kind.MAX_POOL:
                return F.max_pool2d(x, node.kernel, node.stride, node.padding)
            case Kind.MEAN_POOL:
                sides = node.kernel, node.stride, node.padding
                return F.avg_pool2d(x, *sides, count_include_pad=node.count_padding)
            case Kind.ADAPTIVE_POOL:
                return F.adaptive_avg_pool2d(x, node.size)
            case Kind.FLATTEN:
                return x.flatten(1)
        return x


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


def _layer(node: Node, weights: Weights) -> nn.Module:
    filters, inputs = weights.shape[:2]
    bias = weights.bias is not None
    layer: nn.Module
    if node.kind == Kind.LINEAR:
        layer = nn.utils.skip_init(nn.Linear, inputs, filters, bias=bias)
    else:
        sides = node.kernel, node.stride, node.padding
        layer = nn.utils.skip_init(nn.Conv2d, inputs, filters, *sides, bias=bias)
    return _filled(layer, {"weight": weights.dense(), "bias": weights.bias})


def _norm(norm: Norm) -> nn.Module:
    layer = _AnyNorm(len(norm.gamma), eps=norm.epsilon)
    arrays = {"weight": norm.gamma, "bias": norm.beta}
    return _filled(layer, arrays | {"running_mean": norm.mean, "running_var": norm.variance})


class _AnyNorm(nn.BatchNorm2d):
    """Batch norm over the channels of images and of rows alike."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass


def _filled(layer: nn.Module, arrays: Mapping[str, NDArray[Any] | None]) -> nn.Module:
    state = {n: torch.from_numpy(a.copy()) for n, a in arrays.items() if a is not None}
    layer.load_state_dict(state, strict=False)
    return layer
