"""The one transport between the server and its devices, and how many replies become one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.config import RobustnessConfig
from fedtiny.federation.messages import Reply, Request
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.mean import Value, WeightedMean
from fedtiny.sparse.robust_mean import (
    BucketMean,
    CenteredMean,
    KrumMean,
    Mean,
    RobustMean,
    median,
    trimmed,
)
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.top import largest
from fedtiny.sparse.vector import SparseVector

ABSENT = "out of reach"
STRAGGLER = "too late"
NO_SUM = "too few devices for a secure sum"


@dataclass(frozen=True)
class Traffic:
    """Bytes that crossed the transport, over all devices."""

    down: int = 0
    up: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.down + other.down, self.up + other.up)


@dataclass(frozen=True)
class Outcome:
    """What came of a question: the replies, averaged in device order, and who did not answer.

    Means are weighted by the samples of the devices that answered, so a missing device's share
    falls to the others.
    """

    answered: tuple[int, ...]
    failed: Mapping[int, str] = field(default_factory=dict)
    theta: Theta | None = None
    gradients: Mapping[str, SparseVector] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    top_weights: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """By layer, the share of the devices to which each kept weight is one of the largest."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    by_device: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    bounded: Mapping[int, str] = field(default_factory=dict)
    """The devices that were out of the others' bounds, and in what."""
    largest_norms: Mapping[int, float] = field(default_factory=dict)
    """By device, the largest norm of a part of its reply, as a multiple of the devices' median."""
    within_clip: float | None = None
    """Under differential privacy, the noisy share of the replies that needed no clipping."""
    releases: int = 1
    """Under differential privacy, how many sums this question has shown, with those of a run that
    was stopped before it could use them."""
    clipped: tuple[str, ...] = ()
    """The parts of replies of which a device has clipped values, to sum them unseen."""
    exchange: Mapping[str, Any] = field(default_factory=dict)
    """Under secure aggregation, who shared masks with whom, and how many of them it took."""
    traffic: Traffic = Traffic()


class Transport(Protocol):
    """Asks devices, and gives their averaged replies or why there are none.

    The reference simulator, a GPU simulator and a real network stand behind it, so a method
    runs on all of them unchanged.
    """

    @property
    def devices(self) -> Sequence[int]:
        """The devices that can be asked."""

    def present(self) -> Sequence[int]:
        """Those of them that are there now, in order: a round that asks a few draws from these."""

    def ask(
        self,
        devices: Sequence[int],
        request: Request,
        reducer: str,
        top_weights: Mapping[str, int] | None = None,
    ) -> Outcome:
        """Put one question to these devices and average what they answer.

        On request it is also counted, by layer, which of the kept weights are so many of a
        device's largest. That is read off the parameters of its reply and costs no byte.
        """

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of the transport, as plain JSON."""

    def restore(self, state: Mapping[str, Any], theta: Theta) -> None:
        """Take up a state saved before, when the server held this theta."""

    def close(self) -> None:
        """Nothing more will be asked."""


MEAN, HOLDERS = "mean", "mean over holders"
HOLDERS_AND_ABSENT = "mean over holders and absent"
OWN_MASKS = (HOLDERS, HOLDERS_AND_ABSENT)
REDUCERS = (MEAN, *OWN_MASKS)
DENSE = ""  # no layer has this name


class Reducer:
    """Averages replies that come one by one, so that a server never holds two.

    By default all parameters share a mask. Over holders, each weight is averaged over the devices
    whose own mask keeps it, and the masks are united; absent devices may count as holders of what
    they would have been sent. What a reply's gradients leave out counts as
    zero. Metrics are always weighted by samples: they are only shown.

    Of each reply the `top_weights[layer]` largest kept weights of a layer may be counted.
    """

    def __init__(
        self,
        over_holders: bool = False,
        mean: Callable[[bool], Mean] = WeightedMean,
        clip: Callable[[Theta], Theta] = lambda theta: theta,
        top_weights: Mapping[str, int] | None = None,
    ) -> None:
        self._over_holders, self._clip = over_holders, clip
        self._top, self._top_shares = top_weights or {}, mean(False)
        self._thetas = mean(over_holders)
        self._gradients, self._arrays, self._metrics = mean(False), mean(False), WeightedMean()
        self._mask: Mask | None = None
        self._by_device: dict[int, Mapping[str, float]] = {}

    def add(self, reply: Reply, counts: bool = True) -> None:
        """Take one reply, which counts in the means unless it is left out."""
        self._by_device[reply.device] = dict(reply.metrics)
        if not counts:
            return
        if reply.theta is not None:
            theta = self._clip(reply.theta)
            self._thetas.add(self._values(theta), reply.samples)
            self._top_shares.add(top_of_kept(theta, self._top), reply.samples)
        self._gradients.add(reply.gradients, reply.samples)
        self._arrays.add(reply.arrays, reply.samples)
        metrics = {name: np.asarray(value) for name, value in reply.metrics.items()}
        self._metrics.add(metrics, reply.samples)

    def add_absent(self, theta: Theta, samples: int) -> None:
        """Count devices that did not answer in, as if they had sent this back."""
        if samples > 0:
            self._thetas.add(self._values(theta), samples)

    def _values(self, theta: Theta) -> Mapping[str, Value]:
        self._mask = self._mask or theta.mask
        if self._over_holders:
            return {**kept_weights(theta), DENSE: theta.vector[theta.mask.count :]}
        if theta.mask != self._mask:
            raise ValueError("replies under different masks need a mean over holders")
        return {DENSE: theta.vector}

    def _theta(self) -> Theta | None:
        if self._mask is None:
            return None
        kept, dense = self._thetas.sparse(), self._thetas.dense()[DENSE]
        if not self._over_holders:
            return Theta(self._mask, dense)
        united = Mask(self._mask.param_spec, {layer: v.indices for layer, v in kept.items()})
        return Theta(united, np.concatenate([*(v.values for v in kept.values()), dense]))

    def outcome(self, failed: Mapping[int, str], traffic: Traffic) -> Outcome:
        """All replies, reduced."""
        return Outcome(
            answered=tuple(self._by_device),
            failed=failed,
            theta=self._theta(),
            gradients=self._gradients.sparse(),
            arrays=self._arrays.dense(),
            top_weights=self._top_shares.dense(),
            metrics={name: float(value) for name, value in self._metrics.dense().items()},
            by_device=self._by_device,
            traffic=traffic,
        )


def kept_weights(theta: Theta) -> dict[str, SparseVector]:
    """The kept weights of each prunable layer."""
    sizes, mask = theta.param_spec.sizes, theta.mask
    return {
        layer: SparseVector(sizes[layer], mask.indices(layer), theta.kept(layer)) for layer in mask
    }


def top_of_kept(theta: Theta, counts: Mapping[str, int]) -> dict[str, NDArray[np.float32]]:
    """By layer, 1 for each kept weight that is one of so many largest, 0 for the others."""
    found = {layer: np.zeros(theta.mask.kept(layer), np.float32) for layer in counts}
    for layer, count in counts.items():
        found[layer][largest(theta.kept(layer), count)] = 1
    return found


def reducer_for(
    name: str,
    robustness: RobustnessConfig | None = None,
    sent: Theta | None = None,
    top_weights: Mapping[str, int] | None = None,
    draw: Callable[[], np.random.Generator] = np.random.default_rng,
) -> Reducer:
    """The reducer that a method names, as robust as is asked; devices were sent this theta.

    A robust mean may draw who is in one bucket; `draw` begins anew for every part of a reply.
    """
    robustness = robustness or RobustnessConfig()
    mean = mean_for(robustness, draw)
    if sent is None or not robustness.clip_norm:
        return Reducer(name in OWN_MASKS, mean, top_weights=top_weights)
    clip = partial(clipped, sent=sent, norm=robustness.clip_norm)
    return Reducer(name in OWN_MASKS, mean, clip, top_weights)


def mean_for(
    robustness: RobustnessConfig, draw: Callable[[], np.random.Generator]
) -> Callable[[bool], Mean]:
    """What makes the mean that is asked for; it is told whether only holders of a value count."""
    left_out = trimmed(robustness.trim)
    means: dict[str, Callable[[bool], Mean]] = {
        "weighted": WeightedMean,
        "median": partial(RobustMean, median),
        "trimmed": partial(RobustMean, left_out),
        "centered": CenteredMean,
        "krum": partial(KrumMean, left_out),
    }
    mean = means[robustness.mean]
    if robustness.bucket == 1 or robustness.mean == "weighted":
        return mean
    return lambda holders: BucketMean(mean(holders), robustness.bucket, draw(), holders)


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
