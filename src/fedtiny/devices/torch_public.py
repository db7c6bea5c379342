"""What the server measures on the public one-shot set, with PyTorch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, reduce
from operator import mul

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from fedtiny.data.images import input_shape
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.torch_engine import TorchEngine
from fedtiny.devices.torch_layers import batch_statistics, changed
from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph
from fedtiny.models import Traced, traced
from fedtiny.models.synaptic_flow import absolute_and_linear, flow
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

LayerArrays = dict[str, NDArray[np.floating]]


class TorchPublicSet:
    """Measure on the public set through the engine's network.

    Gradients of the loss use the batch's own statistics in batch norm, as SNIP and GraSP score.
    """

    def __init__(self, engine: TorchEngine, shard: DeviceData, graph: Traced | None = None) -> None:
        self.engine = engine
        self.shard = shard
        self.shape = input_shape(engine.transform.layout, shard.data.shape)
        self._graph = traced(engine.model, self.shape) if graph is None else graph

    @cached_property
    def graph(self) -> Graph | None:
        if not isinstance(self._graph, Graph):
            return None
        try:
            _ = Mask.full(self.engine.param_spec).reachability(self._graph).density
        except ModelError:
            return None
        return self._graph

    def evaluate(self, theta: Theta) -> Mapping[str, float]:
        self.engine.load(theta)
        return self.engine.evaluate(self.shard)

    def gradients(self, theta: Theta) -> LayerArrays:
        with self._scored(theta) as weights, batch_statistics(self.engine.model):
            return self._kept(weights, torch.autograd.grad(self._loss(), [*weights.values()]))

    def hessian_gradient(self, theta: Theta) -> LayerArrays:
        with self._scored(theta) as weights, batch_statistics(self.engine.model):
            first = torch.autograd.grad(self._loss(), [*weights.values()], create_graph=True)
            product = torch.stack([(g.detach() * g).sum() for g in first]).sum()
            return self._kept(weights, torch.autograd.grad(product, [*weights.values()]))

    def synaptic_flow(self, theta: Theta, *, normalized: bool = False) -> LayerArrays:
        with self._scored(theta) as weights:
            network = absolute_and_linear(self.engine.model, biases=not normalized)
            parameters = dict(network.named_parameters())
            absolute = [parameters[name] for name in weights]
            gradients = flow(network, self.shape, absolute, normalized=normalized)
            return self._kept(weights, absolute, [gradient.abs_() for gradient in gradients])

    @contextmanager
    def _scored(self, theta: Theta) -> Iterator[dict[str, Tensor]]:
        """The prunable weights with these values; a frozen one has a score like any other."""
        self.engine.load(theta)
        self.engine.model.eval()
        weights = self.engine.prunable()
        with changed(weights.values(), "requires_grad", True):
            yield weights

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
