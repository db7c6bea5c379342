"""Reducers that bound what one device can do, as the config asks for them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from fedtiny.config import RobustnessConfig
from fedtiny.federation.messages import Reply
from fedtiny.federation.reduce import (
    HOLDERS,
    MEAN,
    REDUCERS,
    MeanOfReplies,
    Reducer,
    UnderOneMask,
    by_layer,
    united,
)
from fedtiny.federation.transport import Outcome, Traffic
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.robust_mean import Cut, RobustMean, median, trimmed
from fedtiny.sparse.theta import Theta


def reducer_for(name: str, robustness: RobustnessConfig, theta: Theta) -> Reducer:
    """The reducer that a method names, as robust as is asked; devices were sent this theta."""
    if robustness.mean == "weighted":
        reducer = REDUCERS[name]()
    else:
        reducer = _ROBUST[name](median if robustness.mean == "median" else trimmed(robustness.trim))
    return Clipped(reducer, theta, robustness.clip_norm) if robustness.clip_norm else reducer


class Clipped:
    """Scales an update down to a norm before it is counted in."""

    def __init__(self, reducer: Reducer, theta: Theta, norm: float) -> None:
        self._reducer = reducer
        self._theta = theta
        self._norm = norm

    def add(self, reply: Reply) -> None:
        if reply.theta is not None:
            reply = replace(reply, theta=clipped(reply.theta, self._theta, self._norm))
        self._reducer.add(reply)

    def outcome(self, failed: Mapping[int, str], traffic: Traffic) -> Outcome:
        return self._reducer.outcome(failed, traffic)


def clipped(theta: Theta, sent: Theta, norm: float) -> Theta:
    """A device's parameters with no more than so large a step away from what it was sent.

    Under a mask of its own the step of a grown weight starts at zero. Batch-norm statistics
    count as every other value.
    """
    before = sent if theta.mask == sent.mask else sent.remasked(theta.mask)
    step = theta.vector.astype(np.float64) - before.vector
    length = float(np.linalg.norm(step))
    if length <= norm:
        return theta
    return Theta(theta.mask, (before.vector + step * (norm / length)).astype(np.float32))


class RobustMeanOverHolders:
    """The middle of each weight over the devices whose own mask keeps it; masks are united."""

    def __init__(self, cut: Cut) -> None:
        self._kept, self._others = RobustMean(cut, holders_only=True), RobustMean(cut)
        self._param_spec: ParamSpec | None = None

    def add(self, theta: Theta, samples: int) -> None:
        self._param_spec = theta.param_spec
        self._kept.add(by_layer(theta), samples)
        self._others.add({"dense": theta.vector[theta.mask.count :]}, samples)

    def mean(self) -> Theta | None:
        if self._param_spec is None:
            return None
        return united(self._param_spec, self._kept.sparse(), self._others.dense()["dense"])


_ROBUST: dict[str, Callable[[Cut], Reducer]] = {
    MEAN: lambda cut: MeanOfReplies(UnderOneMask(RobustMean(cut)), partial(RobustMean, cut)),
    HOLDERS: lambda cut: MeanOfReplies(RobustMeanOverHolders(cut), partial(RobustMean, cut)),
}
