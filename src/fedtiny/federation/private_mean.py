"""The mean of replies under differential privacy: the one place where noise is added.

A device's vector is its whole reply: the step of its parameters away from what it was sent, batch-
norm statistics among them, the arrays it was asked for, and its training loss. The vector is scaled
down to the clip, all devices count the same, and what is not answered counts as zero.
"""

import hashlib
from collections.abc import Mapping, Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.reply_spec import expected
from fedtiny.federation.transport import Outcome, Traffic
from fedtiny.privacy.mechanism import Doubles, Mechanism, Part
from fedtiny.sparse.mean import WeightedMean
from fedtiny.sparse.theta import Theta

LARGEST_LOSS = 5.0  # a larger loss counts as this one
LOSS_WEIGHT = 0.1  # of the clip: a training loss of 1 takes a tenth of a device's norm
CANDIDATE_WEIGHT = 1.0  # of the clip, for the losses of candidates, less their mean
LEAST_VARIANCE = 0.5  # share of what was sent below which noise brings no variance
THETA, LOSSES, METRIC, ARRAY = "theta", "losses", "metric ", "array "


class PrivateMean:
    """Takes replies as a `Reducer` does, and gives their mean under noise."""

    def __init__(self, request: Request, mechanism: Mechanism) -> None:
        self._sent, self._mechanism = request.theta, mechanism
        self._spec = expected(request)
        self._sums = WeightedMean()
        self._answered: list[int] = []
        self._within = 0.0

    def add(self, reply: Reply, counts: bool = True) -> None:
        """Take one reply, clipped."""
        parts = self._parts(reply)
        factor = self._mechanism.factor([*parts.values()])
        self._within += factor == 1.0
        self._answered.append(reply.device)
        scaled: dict[str, NDArray[np.floating]] = {
            name: part.values * factor for name, part in parts.items() if name != THETA
        }
        if reply.theta is not None:  # not by way of the step, if it stays: every bit is kept
            shorter = self._sent.vector + parts[THETA].values * factor
            scaled[THETA] = reply.theta.vector if factor == 1.0 else shorter
        self._sums.add(scaled, 1)

    def clipped(self, reply: Reply) -> tuple[dict[str, Doubles], bool]:
        """A device's vector in parts, scaled down to the clip, and whether it was within it."""
        parts = self._parts(reply)
        factor = self._mechanism.factor([*parts.values()])
        return {name: part.values * factor for name, part in parts.items()}, factor == 1.0

    def bounds(self) -> dict[str, tuple[int, float]]:
        """By part of a vector, its number of values, and the largest that the clip allows."""
        clip = self._mechanism.clip
        return {name: (own.size, clip / self._weight(name)) for name, own in self._zeros().items()}

    def add_sum(self, sums: Mapping[str, Doubles], answered: Sequence[int], within: float) -> None:
        """Take the sum of the clipped vectors of several devices, of which none is known."""
        found = dict(sums)
        if self._spec.theta:
            found[THETA] = found[THETA] + len(answered) * self._sent.vector.astype(np.float64)
        self._sums.add(found, 1)
        self._answered += answered
        self._within += within

    def _parts(self, reply: Reply) -> dict[str, Part]:
        """The parts of a device's vector, with what each counts in its norm."""
        clip, found = self._mechanism.clip, {}
        if reply.theta is not None:
            step = reply.theta.vector.astype(np.float64) - self._sent.vector
            found[THETA] = Part(step)
        for name in self._spec.arrays:
            values = np.asarray(reply.arrays[name], np.float64).reshape(-1)
            found[ARRAY + name] = Part(self._told(name, values), self._weight(ARRAY + name))
        for name in sorted(self._spec.metrics):
            value = np.array([reply.metrics[name]])
            told = value if clip == inf else np.minimum(value, LARGEST_LOSS)
            found[METRIC + name] = Part(told, self._weight(METRIC + name))
        return found

    def _told(self, name: str, values: Doubles) -> Doubles:
        """An array as it counts; candidates are told apart by losses less their mean."""
        if name != LOSSES or self._mechanism.clip == inf:
            return values
        capped: Doubles = np.minimum(values, LARGEST_LOSS)
        centered: Doubles = capped - capped.mean()
        return centered

    def _weight(self, name: str) -> float:
        clip = self._mechanism.clip
        if clip == inf or name == THETA:
            return 1.0
        if name.startswith(METRIC):
            return LOSS_WEIGHT * clip
        return CANDIDATE_WEIGHT * clip if name == ARRAY + LOSSES else 1.0

    def outcome(self, failed: Mapping[int, str], traffic: Traffic) -> Outcome:
        """The mean, with noise on every value; nobody's reply is zero under the same noise."""
        sums = self._zeros() | self._sums.sums()
        digest = _digest(sums)
        means = {name: self._noisy(name, own, digest) for name, own in sums.items()}
        arrays = {
            name: means[ARRAY + name].reshape(shape).astype(np.float32)
            for name, shape in self._spec.arrays.items()
        }
        return Outcome(
            answered=tuple(self._answered),
            failed=failed,
            theta=self._theta(means[THETA]) if self._spec.theta else None,
            arrays=arrays,
            metrics={name: float(means[METRIC + name][0]) for name in self._spec.metrics},
            by_device={device: {} for device in self._answered},
            within_clip=self._share_within(digest),
            traffic=traffic,
        )

    def _zeros(self) -> dict[str, Doubles]:
        found = {
            ARRAY + name: np.zeros(shape).reshape(-1) for name, shape in self._spec.arrays.items()
        }
        found |= {METRIC + name: np.zeros(1) for name in self._spec.metrics}
        return found | ({THETA: np.zeros(len(self._sent.vector))} if self._spec.theta else {})

    def _noisy(self, name: str, total: Doubles, digest: str) -> Doubles:
        """The mean over as many devices as were expected, and noise."""
        asked, absent = self._mechanism.asked, self._mechanism.asked - len(self._answered)
        if name == THETA and absent:  # who sent nothing has taken no step
            total = total + absent * self._sent.vector.astype(np.float64)
        weight = self._weight(name)
        noise = self._mechanism.noise(f"noise of {name} on {digest}", total.size, weight)
        mean: Doubles = total / asked
        return mean + noise if self._mechanism.noise_multiplier else mean

    def _theta(self, mean: Doubles) -> Theta:
        """The model of the mean; of statistics, only what noise cannot have made of them."""
        theta, sent = Theta(self._sent.mask, mean.astype(np.float32)), self._sent
        if not self._mechanism.noise_multiplier:
            return theta
        statistics = {name: theta.tensor(name) for name in theta.param_spec.statistics}
        for name, values in statistics.items():
            if self._mechanism.frozen:
                statistics[name] = sent.tensor(name)
            elif name.endswith("running_var"):
                statistics[name] = np.maximum(values, LEAST_VARIANCE * sent.tensor(name))
        return theta.with_dense(statistics)

    def _share_within(self, digest: str) -> float | None:
        if not self._mechanism.counts_bits:
            return None
        return self._mechanism.share_within(self._within, len(self._answered), f"bits of {digest}")


def _digest(sums: Mapping[str, Doubles]) -> str:
    """Eight bytes of the exact sums: a sum has noise of its own, and the same if it comes again."""
    found = hashlib.blake2b(digest_size=8)
    for name, values in sorted(sums.items()):
        found.update(name.encode())
        found.update(np.ascontiguousarray(values).data)
    return found.hexdigest()
