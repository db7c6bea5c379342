"""Turning the replies of many devices into one, a reply at a time and in device order."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.messages import Reply
from fedtiny.federation.transport import Outcome, Traffic
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.mean import Mean, WeightedMean
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

MEAN, HOLDERS = "mean", "mean over holders"


class Reducer(Protocol):
    """Takes replies one by one, so that a server never holds two."""

    def add(self, reply: Reply) -> None:
        """Count one reply in."""

    def outcome(self, failed: Mapping[int, str], traffic: Traffic) -> Outcome:
        """All replies, reduced."""


class ThetaMean(Protocol):
    """How the parameters of replies are averaged."""

    def add(self, theta: Theta, samples: int) -> None:
        """Count one device's parameters in."""

    def mean(self) -> Theta | None:
        """The global parameters, or none where no device sent any."""


class UnderOneMask:
    """The mean of parameters that share a mask."""

    def __init__(self, mean: Mean) -> None:
        self._mean = mean
        self._mask: Mask | None = None

    def add(self, theta: Theta, samples: int) -> None:
        self._mask = self._mask or theta.mask
        if theta.mask != self._mask:
            raise ValueError("replies under different masks need a mean over holders")
        self._mean.add({"theta": theta.vector}, samples)

    def mean(self) -> Theta | None:
        return Theta(self._mask, self._mean.dense()["theta"]) if self._mask else None


class OverHolders:
    """Each weight averaged over the devices whose own mask keeps it; the masks are united."""

    def __init__(self) -> None:
        self._values, self._holders, self._others = (WeightedMean() for _ in range(3))
        self._param_spec: ParamSpec | None = None

    def add(self, theta: Theta, samples: int) -> None:
        self._param_spec = theta.param_spec
        self._others.add({"dense": theta.vector[theta.mask.count :]}, samples)
        values = by_layer(theta)
        held = {layer: _sparse(theta, layer, np.ones_like(v.values)) for layer, v in values.items()}
        self._values.add(values, samples)
        self._holders.add(held, samples)

    def mean(self) -> Theta | None:
        """The mean over all devices, divided by the share of them that holds the weight."""
        if self._param_spec is None:
            return None
        values, shares = self._values.sparse(), self._holders.sparse()
        kept = {
            layer: SparseVector(vector.size, vector.indices, vector.values / shares[layer].values)
            for layer, vector in values.items()
        }
        return united(self._param_spec, kept, self._others.dense()["dense"])


def by_layer(theta: Theta) -> dict[str, SparseVector]:
    """The kept weights of each prunable layer."""
    return {layer: _sparse(theta, layer, theta.kept(layer)) for layer in theta.mask}


def united(
    param_spec: ParamSpec, kept: Mapping[str, SparseVector], dense: NDArray[np.float32]
) -> Theta:
    """The parameters that keep, in each layer, the weights that a vector has."""
    mask = Mask(param_spec, {layer: vector.indices for layer, vector in kept.items()})
    return Theta(mask, np.concatenate([*(vector.values for vector in kept.values()), dense]))


def _sparse(theta: Theta, layer: str, values: NDArray[np.float32]) -> SparseVector:
    return SparseVector(theta.param_spec.sizes[layer], theta.mask.indices(layer), values)


class MeanOfReplies:
    """Everything averaged; what a reply's gradients leave out counts as zero.

    Metrics are always weighted by samples: they are only shown.
    """

    def __init__(self, thetas: ThetaMean, mean: Callable[[], Mean] = WeightedMean) -> None:
        self._thetas = thetas
        self._gradients, self._arrays, self._metrics = mean(), mean(), WeightedMean()
        self._by_device: dict[int, Mapping[str, float]] = {}

    def add(self, reply: Reply) -> None:
        if reply.theta is not None:
            self._thetas.add(reply.theta, reply.samples)
        self._gradients.add(reply.gradients, reply.samples)
        self._arrays.add(reply.arrays, reply.samples)
        metrics = {name: np.asarray(value) for name, value in reply.metrics.items()}
        self._metrics.add(metrics, reply.samples)
        self._by_device[reply.device] = dict(reply.metrics)

    def outcome(self, failed: Mapping[int, str], traffic: Traffic) -> Outcome:
        return Outcome(
            answered=tuple(self._by_device),
            failed=failed,
            theta=self._thetas.mean(),
            gradients=self._gradients.sparse(),
            arrays=self._arrays.dense(),
            metrics={name: float(value) for name, value in self._metrics.dense().items()},
            by_device=self._by_device,
            traffic=traffic,
        )


REDUCERS: dict[str, Callable[[], Reducer]] = {
    MEAN: lambda: MeanOfReplies(UnderOneMask(WeightedMean())),
    HOLDERS: lambda: MeanOfReplies(OverHolders()),
}
