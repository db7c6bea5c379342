"""What the server measures on the public one-shot set, with PyTorch."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from operator import mul

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.torch_engine import TorchEngine
from fedtiny.devices.torch_norms import norms
from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph
from fedtiny.models import Traced, traced
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

LayerArrays = dict[str, NDArray[np.floating]]


class TorchPublicSet:
    """The public set, seen through the engine's network; batch norm uses its running statistics."""

    def __init__(self, engine: TorchEngine, shard: DeviceData, graph: Traced | None = None) -> None:
        self.engine = engine
        self.shard = shard
        self._graph = traced(engine.model, shard.data.shape) if graph is None else graph

    @cached_property
    def graph(self) -> Graph | None:
        if not isinstance(self._graph, Graph):
            return None
        try:
            _ = Mask.full(self.engine.param_spec).reachability(self._graph).density
        except ModelError:
            return None
        return self._graph

    def gradients(self, theta: Theta) -> LayerArrays:
        with self._scored(theta) as weights:
            return self._kept(weights, torch.autograd.grad(self._loss(), [*weights.values()]))

    def hessian_gradient(self, theta: Theta) -> LayerArrays:
        with self._scored(theta) as weights:
            first = torch.autograd.grad(self._loss(), [*weights.values()], create_graph=True)
            product = torch.stack([(g.detach() * g).sum() for g in first]).sum()
            return self._kept(weights, torch.autograd.grad(product, [*weights.values()]))

    def synaptic_flow(self, theta: Theta) -> LayerArrays:
        with self._scored(theta) as weights:
            network = _absolute_and_linear(self.engine.model)
            parameters = dict(network.named_parameters())
            absolute = [parameters[name] for name in weights]
            shape, device = self.shard.data.shape, self.engine.device
            ones = torch.ones(1, *shape, dtype=torch.float64, device=device)
            gradients = torch.autograd.grad(network(ones).sum(), absolute)
            return self._kept(weights, absolute, gradients)

    @contextmanager
    def _scored(self, theta: Theta) -> Iterator[dict[str, Tensor]]:
        """The prunable weights with these values; a frozen one has a score like any other."""
        self.engine.load(theta)
        self.engine.model.eval()
        weights = self.engine.prunable()
        frozen = [weight for weight in weights.values() if not weight.requires_grad]
        try:
            for weight in frozen:
                weight.requires_grad = True
            yield weights
        finally:
            for weight in frozen:
                weight.requires_grad = False

    def _kept(self, weights: Iterable[str], *factors: Sequence[Tensor]) -> LayerArrays:
        """The product of some factors for kept weights; the rest never leaves the card."""
        found = {}
        for name, *values in zip(weights, *factors, strict=True):
            kept = [self.engine.kept(name, value.detach()) for value in values]
            found[name] = reduce(mul, kept).cpu().numpy()
        return found

    def _loss(self) -> Tensor:
        inputs, labels = self.engine.inputs(self.shard.data, self.shard.indices)
        return F.cross_entropy(self.engine.model(inputs), labels)


@torch.no_grad()
def _absolute_and_linear(model: nn.Module) -> nn.Module:
    """A copy with absolute weights in float64, whose batch norm passes everything on.

    Identity batch norm keeps the flow positive, so that no score is zero behind a zero gamma and
    a shortcut counts like any layer; float64 keeps a deep product from overflowing.
    """
    network = copy.deepcopy(model).double().eval()
    for parameter in network.parameters():
        parameter.abs_()
    for norm in norms(network).values():
        _pass_on(norm)
    return network


def _pass_on(norm: nn.Module) -> None:
    for name, value in (
        ("weight", 1.0),
        ("bias", 0.0),
        ("running_mean", 0.0),
        ("running_var", 1.0),
    ):
        tensor = getattr(norm, name)
        if tensor is not None:
            tensor.fill_(value)
