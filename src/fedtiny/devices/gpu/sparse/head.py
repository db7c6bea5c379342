"""The end of a network, behind its last convolution, for several devices at once in PyTorch."""

from collections.abc import Mapping, Sequence
from math import prod

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedtiny.devices.gpu.stand_ins import keyed_dropout
from fedtiny.devices.torch_layers import DeterministicAdaptivePool
from fedtiny.graph.ir import Kind, Node, Shape

Weights = Mapping[str, Tensor]


class Head:
    """Pooling, flatten, linear layers, ReLU and dropout, each device with weights of its own.

    `keys` is [devices, dropouts]: what dropout is drawn by in this step.
    """

    def __init__(
        self, nodes: Sequence[Node], features: Shape, shapes: Mapping[str, Sequence[int]]
    ) -> None:
        self.nodes = nodes
        self.features = features
        self.shapes = shapes
        self.layers = [node for node in nodes if node.kind == Kind.LINEAR]
        self.dropouts = sum(node.kind == Kind.DROPOUT for node in nodes)

    @property
    def names(self) -> list[str]:
        """Its parameters, by name."""
        return [f"{n.name}.{part}" for n in self.layers for part in self._parts(n)]

    def _parts(self, node: Node) -> tuple[str, ...]:
        return ("weight", "bias") if node.bias else ("weight",)

    def logits(self, features: Tensor, weights: Weights, keys: Tensor) -> Tensor:
        """What a network gives for features [devices, images, values]."""
        x = features
        drawn = 0
        for node in self.nodes:
            if node.kind == Kind.LINEAR:
                x = self._linear(node, x, weights)
            elif node.kind == Kind.RELU:
                x = x.relu()
            elif node.kind == Kind.DROPOUT:
                each = keys[:, drawn, None, None]
                x = keyed_dropout(x, node.probability, each, x.shape[1:])
                drawn += 1
            elif node.kind == Kind.ADAPTIVE_POOL:
                x = self._pooled(node, x)
        return x

    def _linear(self, node: Node, x: Tensor, weights: Weights) -> Tensor:
        weight = weights[f"{node.name}.weight"].transpose(1, 2)
        if node.bias:
            return torch.baddbmm(weights[f"{node.name}.bias"].unsqueeze(1), x, weight)
        return torch.bmm(x, weight)

    def _pooled(self, node: Node, x: Tensor) -> Tensor:
        planes = x.reshape(-1, *self.features)
        pooled: Tensor = DeterministicAdaptivePool(*node.size)(planes)
        return pooled.reshape(*x.shape[:2], -1)

    def losses(
        self, features: Tensor, labels: Tensor, weights: Weights, keys: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Mean loss of each device, and the gradients of the features and of every parameter."""
        leaves = {name: weights[name].detach().requires_grad_() for name in self.names}
        inputs = features.detach().requires_grad_()
        with torch.enable_grad():
            logits = self.logits(inputs, leaves, keys)
            losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            means = losses.view(labels.shape).mean(1)
            found = torch.autograd.grad(means.sum(), [inputs, *leaves.values()])
        return means.detach(), list(found)

    def weights(self, values: Tensor, places: Mapping[str, int]) -> dict[str, Tensor]:
        """Views of the parameters, out of the values of some devices."""
        found = {}
        for name in self.names:
            shape, start = self.shapes[name], places[name]
            part = values[:, start : start + prod(shape)]
            found[name] = part.view(len(values), *shape)
        return found
