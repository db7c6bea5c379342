"""The end of a network, behind its last convolution: flatten, linear layers, ReLU, dropout, loss.

All in fp32. What comes of a device depends on no other one that is trained beside it: products are
our own, since a library chooses its kernel by the number of matrices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from fedtiny.devices.gpu.sparse.arguments import Linear, address
from fedtiny.devices.gpu.sparse.launches import SMALL, Launch
from fedtiny.devices.gpu.stand_ins import NEXT, keyed_dropout
from fedtiny.graph.ir import Kind, Node

Call = Callable[[int], None]
"""Something in PyTorch that is done for the first so many devices."""
Step = Launch | Call


@dataclass(frozen=True)
class Values:
    """What a node gives for every device and image, and the gradient of that."""

    tensor: Tensor
    gradient: Tensor

    def like(self, size: int) -> "Values":
        """As much room for so many values of every image."""
        shape = (*self.tensor.shape[:2], size)
        return Values(self.tensor.new_zeros(shape), self.tensor.new_zeros(shape))


@dataclass(frozen=True)
class Head:
    """The end of a network for all devices.

    `theta` [devices, values] and `gradient` [devices, dense] have its parameters at `places`.
    `losses` [devices, batch] takes the sum over steps of every image's loss. `keys` [devices,
    dropouts] is what dropout is drawn by; it steps on.
    """

    nodes: Sequence[Node]
    theta: Tensor
    gradient: Tensor
    places: Mapping[str, int]
    labels: Tensor
    losses: Tensor
    keys: Tensor

    def steps(self, features: Values) -> list[Step]:
        """From the features to the loss, and back to the gradient of the features."""
        there: list[Step] = []
        back: list[list[Step]] = []
        values, drawn = features, 0
        for node in self.nodes:
            if node.kind == Kind.FLATTEN:
                continue
            linear = node.kind == Kind.LINEAR
            after = values.like(node.channels if linear else values.tensor.shape[2])
            if linear:
                step, *ways_back = self._linear(node, values, after)
            elif node.kind == Kind.RELU:
                step, *ways_back = _relu(values, after)
            else:
                step, *ways_back = self._dropout(node, drawn, values, after)
                drawn += 1
            there.append(step)
            back.insert(0, ways_back)
            values = after
        ends: list[Step] = [self._loss(values)]
        ends += [step for part in back for step in part]
        return [*there, *ends, *([self._next_keys] if drawn else [])]

    def _linear(self, node: Node, before: Values, after: Values) -> tuple[Step, ...]:
        batch, inputs = before.tensor.shape[1:]
        tensors = (before.tensor, after.tensor, after.gradient, before.gradient)
        args = Linear(
            *map(address, (*tensors, self.theta, self.gradient)),
            *(self.theta.shape[1], self.gradient.shape[1], self.places[f"{node.name}.weight"]),
            self.places[f"{node.name}.bias"] if node.bias else -1,
            *(batch, inputs, node.channels),
        )

        def launch(name: str, threads: int) -> Launch:
            return Launch(f"linear_{name}", (-(-threads // SMALL), 1), SMALL, args)

        return (
            launch("forward", 32 * batch * node.channels),
            launch("weight_gradient", node.channels * inputs),
            launch("input_gradient", batch * inputs),
        )

    def _dropout(self, node: Node, number: int, before: Values, after: Values) -> tuple[Call, Call]:
        """The same values are dropped from the tensor and from the gradient."""

        def dropped(source: Tensor, to: Tensor, active: int) -> None:
            part, keys = source[:active], self.keys[:active, number, None, None]
            to[:active] = keyed_dropout(part, node.probability, keys, part.shape[1:])

        return (
            partial(dropped, before.tensor, after.tensor),
            partial(dropped, after.gradient, before.gradient),
        )

    def _loss(self, logits: Values) -> Call:
        """Cross entropy of every image, and the gradient of its mean over a batch."""
        classes = torch.arange(logits.tensor.shape[2], device=logits.tensor.device)

        def loss(active: int) -> None:
            logs = F.log_softmax(logits.tensor[:active], dim=2)
            labels = self.labels[:active].unsqueeze(2)
            self.losses[:active] -= logs.gather(2, labels).squeeze(2)
            found = logs.exp() - (classes == labels).to(logs.dtype)
            logits.gradient[:active] = found / self.labels.shape[1]

        return loss

    def _next_keys(self, active: int) -> None:
        self.keys.add_(NEXT)


def _relu(before: Values, after: Values) -> tuple[Call, Call]:
    def there(active: int) -> None:
        after.tensor[:active] = before.tensor[:active].relu()

    def back(active: int) -> None:
        passes = after.tensor[:active] > 0
        before.gradient[:active] = after.gradient[:active] * passes

    return there, back


def dropouts(nodes: Sequence[Node]) -> int:
    """How many of these nodes draw."""
    return sum(node.kind == Kind.DROPOUT for node in nodes)
