"""What one device can do, bounded by what the others do.

Every part of a reply has a norm: the step of its weights and that of its batch-norm statistics away
from what the device was sent, its gradients of a layer, each of its arrays. A part whose norm is
more than `bound` times the median of the devices' norms is out of bounds. A device of more samples
trains longer: with the root of its samples the bound of its steps widens. Gradients are of one
batch, so many samples change nothing; those of fewer samples than usual differ more, and with the
root of these their bound widens. A step or gradients out of bounds are scaled down to the median
or, beyond twice the bound, left out; an array is clipped, value by value, to the range of the
devices that are within bounds. Of losses two things are compared: their level, which is a device's
median, and what tells candidates apart, which is how its losses less their level differ from the
devices' median. Out of bounds, the devices' medians take their place.

A step beyond half the bound must also go along with the others', where they agree, and one that
weighs much, for its samples, must not go against them: else it is left out. Of a device whose step
is left out nothing counts. Where nothing is out of bounds nothing is changed, not by a bit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.directions import cosines
from fedtiny.federation.messages import Reply
from fedtiny.federation.norms import (
    ARRAY,
    GRADIENTS,
    LEVEL,
    LOSSES,
    METRIC,
    STATISTICS,
    WEIGHTS,
    Doubles,
    Measured,
    Part,
    compared_losses,
)
from fedtiny.sparse.theta import Theta, statistics_places
from fedtiny.sparse.vector import SparseVector

Ranges = dict[str, tuple[NDArray[np.generic], NDArray[np.generic]]]
FEWEST = 3  # devices among which one can be told from the others
DIRECTION: Part = ("direction", "")
LOOSER = {STATISTICS[0]: 1.5, ARRAY: 1.5, LOSSES[0]: 1.5, METRIC[0]: 4.0}
"""Kinds of parts in which honest devices differ more: by how much the bound is wider."""
EXPECTED = (0.5, 3.0)  # least and most that the root of a device's samples counts for
FAR = 2.0  # times the bound: beyond it a step or gradients are left out
LONG = 0.5  # times the bound: beyond it a step must go along with the others'
HEAVY = 2 / 3  # times the bound: a step, times samples, beyond it must not go against them
VOTERS = 5  # devices among which a heavy step can be told to go against the others
AGREE = 0.1  # a typical device's cosine with the others from which on devices agree
ALONG = 0.25  # times that cosine: what a long step must reach; and a heavy one, times -1


@dataclass
class Bounds:
    """Which parts of which replies are out of bounds, and what they are brought to."""

    sent: Theta
    bound: float
    expected: dict[int, float] = field(default_factory=dict)
    """By device, how long a step is expected of its samples, as a multiple of the median."""
    samples: dict[int, int] = field(default_factory=dict)
    steps: dict[int, float] = field(default_factory=dict)
    """By device, the norm of its step of weights."""
    out: dict[int, dict[Part, float]] = field(default_factory=dict)
    """By device and part, how many times the median it is."""
    largest: dict[int, float] = field(default_factory=dict)
    """The largest of these of every device, out of bounds or not."""
    medians: dict[Part, float] = field(default_factory=dict)
    losses: Doubles | None = None
    """What stands for the losses of a device that is out of bounds."""
    ranges: Ranges = field(default_factory=dict)
    """By array, the least and largest values of the devices that are within bounds."""

    @classmethod
    def among(cls, measured: Mapping[int, Measured], sent: Theta, bound: float) -> "Bounds":
        """What the norms of these devices say; of too few devices, or without a bound, nothing."""
        found = cls(sent, bound)
        if not bound or len(measured) < FEWEST:
            return found
        usual = float(np.median([own.samples for own in measured.values()]))
        for device, one in measured.items():
            found.expected[device] = float(np.clip(sqrt(one.samples / usual), *EXPECTED))
            found.samples[device] = one.samples
        norms = {device: dict(own.norms) for device, own in measured.items()}
        losses = {device: own.losses for device, own in measured.items() if own.losses is not None}
        if losses:
            found.losses, of_losses = compared_losses(losses)
            for device, own in of_losses.items():
                norms[device] |= own
        for part in sorted({part for own in norms.values() for part in own}):
            found._compare(part, {d: own[part] for d, own in norms.items() if part in own})
        return found

    def _compare(self, part: Part, norms: Mapping[int, float]) -> None:
        """Find who is out of bounds in a part; who has nothing in it says nothing of the others.

        But where most leave weights or statistics as they are (frozen batch norm), so must all.
        """
        some = [own for own in norms.values() if own > 0]
        if part in (WEIGHTS, STATISTICS) and len(norms) - len(some) > max(len(some), FEWEST - 1):
            self._leave_out(part, [device for device, own in norms.items() if own > 0])
            return
        if len(some) < FEWEST:
            return
        self.medians[part] = float(np.median(some))
        if part == WEIGHTS:
            self.steps = dict(norms)
        for device, own in norms.items():
            ratio = own / self.medians[part]
            self.largest[device] = max(ratio, self.largest.get(device, 0.0))
            if ratio > self._limit(part, device):
                self.out.setdefault(device, {})[part] = ratio

    def _leave_out(self, part: Part, devices: Iterable[int]) -> None:
        for device in devices:
            self.largest[device] = inf
            self.out.setdefault(device, {})[part] = inf

    def _limit(self, part: Part, device: int) -> float:
        limit = self.bound * LOOSER.get(part[0], 1.0)
        if part in (WEIGHTS, STATISTICS):
            return limit * self.expected[device]
        return limit / min(1.0, self.expected[device]) if part[0] == GRADIENTS else limit

    def _is_far(self, part: Part, device: int) -> bool:
        return self.out[device].get(part, 0.0) > FAR * self._limit(part, device)

    def leaves_out(self, device: int) -> bool:
        """Whether nothing of a device's reply counts, for its step is left out."""
        parts = self.out.get(device, {})
        far = (self._is_far(part, device) for part in (WEIGHTS, STATISTICS) if part in parts)
        return DIRECTION in parts or any(far)

    def compare_directions(self, replies: Iterable[Reply]) -> None:
        """Find whose step is long or heavy and goes another way than the others agree on."""
        steps = {k: own for k, own in self.steps.items() if own > 0 and not self.leaves_out(k)}
        shares = self._least_shares(steps)
        found = cosines(replies, self.sent, steps) if shares else {}
        usual = float(np.median([*found.values()])) if found else 0.0
        for device in sorted(found.keys() & shares.keys()) if usual >= AGREE else ():
            if found[device] < shares[device] * usual:
                self.out.setdefault(device, {}).pop(WEIGHTS, None)
                self.out[device][DIRECTION] = self.steps[device] / self.medians[WEIGHTS]

    def _least_shares(self, steps: Mapping[int, float]) -> dict[int, float]:
        """Of devices of long or heavy steps, the least share of the others' usual cosine."""
        heavy = {device: own * self.samples[device] for device, own in steps.items()}
        shares = {}
        if len(steps) >= VOTERS:
            most = HEAVY * self.bound * float(np.median([*heavy.values()]))
            shares = {device: -ALONG for device, own in heavy.items() if own > most}
        for device, own in steps.items():
            if own > LONG * self._limit(WEIGHTS, device) * self.medians[WEIGHTS]:
                shares[device] = ALONG
        return shares

    def learn_ranges(self, replies: Iterable[Reply]) -> None:
        """Find the ranges to which arrays that are out of bounds are clipped.

        Where all devices within bounds in an array are left out, for their steps, it is theirs.
        """
        wanted = {part for own in self.out.values() for part in own if part[0] == ARRAY}
        left_out: Ranges = {}
        for reply in replies if wanted else ():
            ranges = left_out if self.leaves_out(reply.device) else self.ranges
            for _, name in wanted - self.out.get(reply.device, {}).keys():
                array = np.asarray(reply.arrays[name])
                low, high = ranges.get(name, (array, array))
                ranges[name] = np.minimum(low, array), np.maximum(high, array)
        self.ranges = left_out | self.ranges

    def applied(self, reply: Reply) -> Reply:
        """The reply with what is out of bounds brought back; else the reply itself."""
        parts = self.out.get(reply.device)
        if not parts:
            return reply
        return replace(
            reply,
            theta=self._theta(reply.device, reply.theta) if reply.theta is not None else None,
            gradients={
                n: self._gradient(reply.device, n, own) for n, own in reply.gradients.items()
            },
            arrays={
                name: self._array(name, np.asarray(array), parts)
                for name, array in reply.arrays.items()
            },
            metrics={name: self._metric(name, v, parts) for name, v in reply.metrics.items()},
        )

    def _theta(self, device: int, theta: Theta) -> Theta | None:
        parts = self.out[device]
        if self.leaves_out(device):
            return None
        if not parts.keys() & {WEIGHTS, STATISTICS}:
            return theta
        before = self.sent if theta.mask == self.sent.mask else self.sent.remasked(theta.mask)
        shares = np.full(len(theta.vector), 1 / parts.get(WEIGHTS, 1.0))
        shares[theta.mask.count :][statistics_places(theta)] = 1 / parts.get(STATISTICS, 1.0)
        step = theta.vector.astype(np.float64) - before.vector
        moved = np.where(shares < 1, before.vector + step * shares, theta.vector)
        return Theta(theta.mask, moved.astype(np.float32))

    def _gradient(self, device: int, layer: str, own: SparseVector) -> SparseVector:
        part, parts = (GRADIENTS, layer), self.out[device]
        if part not in parts:
            return own
        if self._is_far(part, device):
            return SparseVector(own.size, own.indices[:0], own.values[:0])
        values = own.values.astype(np.float64) / parts[part]
        return SparseVector(own.size, own.indices, values.astype(np.float32))

    def _array(
        self, name: str, array: NDArray[np.generic], parts: Mapping[Part, float]
    ) -> NDArray[np.generic]:
        if name == "losses" and parts.keys() & {LOSSES, LEVEL}:
            assert self.losses is not None
            return self.losses.astype(np.float32)
        if (ARRAY, name) not in parts:
            return array
        clipped: NDArray[np.generic] = np.clip(array, *self.ranges[name])
        return clipped

    def _metric(self, name: str, value: float, parts: Mapping[Part, float]) -> float:
        return value / parts[METRIC] if name == "loss" and METRIC in parts else value

    @property
    def named(self) -> dict[int, str]:
        """Why devices are out of bounds, in words."""
        return {device: _told(parts) for device, parts in sorted(self.out.items())}


def _told(parts: Mapping[Part, float]) -> str:
    """The part that is furthest out, and how many others there are.

    >>> _told({("update", ""): 97.3, ("gradients", "conv1.weight"): 4.0})
    'update 97.3 times the median norm, and 1 more'
    """
    (what, name), ratio = max(parts.items(), key=lambda found: found[1])
    part = {GRADIENTS: f"gradients of {name}", ARRAY: name}.get(what, what)
    more = f", and {len(parts) - 1} more" if len(parts) > 1 else ""
    if ratio == inf:
        return f"{part} moved that most left as they were{more}"
    if (what, name) == DIRECTION:
        return f"update {ratio:.3g} times the median norm and not along with the others{more}"
    return f"{part} {ratio:.3g} times the median norm{more}"
