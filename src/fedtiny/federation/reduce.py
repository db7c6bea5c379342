"""Turning the replies of many devices into one, a reply at a time and in device order."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.door import Outcome, Traffic
from fedtiny.federation.messages import Reply
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.mean import WeightedMean
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector


class Reducer(Protocol):
    """Takes replies one by one, so that a server never holds two."""

    def add(self, reply: Reply) -> None:
        """Count one reply in."""

    def outcome(self, failed: Mapping[int, str], traffic: Traffic) -> Outcome:
        """All replies, reduced."""


class MeanOfReplies:
    """The mean weighted by samples; what a reply's gradients leave out counts as zero."""

    def __init__(self) -> None:
        self._mean = WeightedMean()
        self._mask: Mask | None = None
        self._by_device: dict[int, Mapping[str, float]] = {}

    def add(self, reply: Reply) -> None:
        if reply.theta is not None:
            self._check_mask(reply)
        self._mean.add(_named_values(reply), weight=reply.samples)
        self._by_device[reply.device] = dict(reply.metrics)

    def _check_mask(self, reply: Reply) -> None:
        assert reply.theta is not None
        self._mask = self._mask or reply.theta.mask
        if reply.theta.mask != self._mask:
            raise ValueError("replies under different masks need a mean over holders")

    def outcome(self, failed: Mapping[int, str], traffic: Traffic) -> Outcome:
        means = self._mean.result() if self._by_device else {}
        parts: dict[str, dict[str, Any]] = {"theta": {}, "gradient": {}, "array": {}, "metric": {}}
        for name, value in means.items():
            part, _, key = name.partition("/")
            parts[part][key] = value
        theta = Theta(self._mask, parts["theta"][""]) if self._mask else None
        return Outcome(
            answered=tuple(self._by_device),
            failed=failed,
            theta=theta,
            gradients=parts["gradient"],
            arrays=parts["array"],
            metrics={name: float(value) for name, value in parts["metric"].items()},
            by_device=self._by_device,
            traffic=traffic,
        )


def _named_values(reply: Reply) -> dict[str, NDArray[Any] | SparseVector]:
    theta = {} if reply.theta is None else {"theta/": reply.theta.vector}
    metrics = {f"metric/{name}": np.float64(value) for name, value in reply.metrics.items()}
    return {
        **theta,
        **{f"gradient/{layer}": vector for layer, vector in reply.gradients.items()},
        **{f"array/{name}": array for name, array in reply.arrays.items()},
        **{name: np.asarray(value) for name, value in metrics.items()},
    }


REDUCERS: dict[str, Callable[[], Reducer]] = {"mean": MeanOfReplies}
