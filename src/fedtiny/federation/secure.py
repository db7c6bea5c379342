"""Replies as vectors that can be summed unseen, and their sum as an outcome again."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.config import Config
from fedtiny.errors import ConfigError
from fedtiny.federation.messages import HOPELESS_LOSS, Reply, Request
from fedtiny.federation.method import Method
from fedtiny.federation.private_mean import PrivateMean
from fedtiny.federation.reply_spec import ReplySpec, expected
from fedtiny.federation.reply_validator import NEVER_NEGATIVE
from fedtiny.federation.secure_gradients import table_for
from fedtiny.federation.transport import MEAN, Outcome, Traffic
from fedtiny.privacy.mechanism import Mechanism
from fedtiny.privacy.secagg.graph import degree, fewest_summed, threshold
from fedtiny.privacy.secagg.noise_shares import NoiseShares
from fedtiny.privacy.secagg.quantize import Mean, Scales, followed
from fedtiny.sparse.theta import Theta

LARGEST_WEIGHTS = "counts each device's largest weights, which a sum hides; use another method"
OWN_MASKS = "has masks of the devices' own, whose weights do not sum; use another method"
LOSSES, HOPELESS, WITHIN = "losses", "hopeless", "within the clip"
LARGEST_LOSS = 256.0
LEAST_SHRINK = 0.9  # of a clipped vector, so that it is within the clip when it is rounded
STATISTICS = ("running_mean", "running_var", "running_square")
FIRST_BOUNDS = {"theta": 4.0, "statistics": 64.0, "gradients": 1.0}
"""Before anything is known: what a tensor moves by, as a multiple of 1 and its largest value; so
for batch-norm statistics; and gradients of weights as they are."""

Key = tuple[str, str]
"""Theta, array or metric, and its name."""


@dataclass(frozen=True)
class Layout:
    """The parts of every honest reply to a request, in the order in which they are summed."""

    request: Request
    sizes: Mapping[Key, int]

    @classmethod
    def of(cls, request: Request) -> "Layout":
        """What devices answer to a request; what cannot be summed is refused."""
        spec, theta, sizes = expected(request), request.theta, dict[Key, int]()
        if why := not_summable(spec):
            raise ConfigError(f"--privacy.secure-aggregation: method '{request.method}' {why}")
        if spec.theta:
            places = theta.places.items()
            sizes |= {("theta", name): place.stop - place.start for name, place in places}
        arrays = {name: int(np.prod(shape)) for name, shape in spec.arrays.items()}
        if LOSSES in arrays:
            arrays[HOPELESS] = arrays[LOSSES]
        sizes |= {("array", name): size for name, size in arrays.items()}
        return cls(request, sizes | {("metric", name): 1 for name in sorted(spec.metrics)})

    def scales(self, bounds: "Bounds", devices: int, heaviest: int) -> Scales:
        """How values become numbers: by bounds that follow what devices send."""
        known = (bounds.known.get(_name(key)) or self._first_bound(key) for key in self.sizes)
        return Scales(tuple(self.sizes.values()), tuple(known), heaviest, devices)

    def weight(self, reply: Reply) -> int:
        """What a reply counts in the mean."""
        return reply.samples

    def values(self, reply: Reply) -> NDArray[np.float64]:
        """A reply's values, one after the other; weights as steps away from what was sent."""
        parts: list[NDArray[Any]] = []
        if reply.theta is not None:
            parts.append(reply.theta.vector.astype(np.float64) - self.request.theta.vector)
        arrays = dict(reply.arrays)
        if LOSSES in arrays:
            arrays[HOPELESS] = arrays[LOSSES] >= HOPELESS_LOSS
        parts += [np.ravel(arrays[name]) for kind, name in self.sizes if kind == "array"]
        parts += [np.array([reply.metrics[n]]) for kind, n in self.sizes if kind == "metric"]
        return np.concatenate(parts, dtype=np.float64)

    def outcome(
        self, mean: Mean, answered: Sequence[int], failed: Mapping[int, str], traffic: Traffic
    ) -> Outcome:
        """What the mean of all replies says."""
        found = _split(self.sizes, mean.values)
        arrays = {name: values for (kind, name), values in found.items() if kind == "array"}
        if LOSSES in arrays:
            hopeless = arrays.pop(HOPELESS) > 0.5 / mean.weight
            arrays[LOSSES] = np.where(hopeless, HOPELESS_LOSS, arrays[LOSSES])
        shapes = expected(self.request).arrays
        metrics = {n: float(values[0]) for (kind, n), values in found.items() if kind == "metric"}
        theta = self._theta(found) if any(kind == "theta" for kind, _ in self.sizes) else None
        return Outcome(
            answered=tuple(answered),
            failed=dict(sorted(failed.items())),
            theta=theta,
            arrays={
                name: _possible(name, values).astype(np.float32).reshape(shapes[name])
                for name, values in arrays.items()
            },
            metrics=metrics,
            traffic=traffic,
        )

    def _first_bound(self, key: Key) -> float:
        kind, name = key
        if kind == "metric" or name == LOSSES:
            return LARGEST_LOSS
        if name == HOPELESS:
            return 1.0
        theta, statistics = self.request.theta, name.endswith(STATISTICS)
        if kind == "array" and not statistics:
            return FIRST_BOUNDS["gradients"]
        of = name.replace("running_square", "running_var")
        largest = 1 + float(np.abs(theta.vector[theta.places[of]]).max(initial=0.0))
        bound = FIRST_BOUNDS["statistics" if statistics else "theta"] * largest
        return bound**2 if name.endswith("running_square") else bound

    def _theta(self, found: Mapping[Key, NDArray[np.float64]]) -> Theta:
        sent = self.request.theta
        moved = [
            _possible(name, sent.vector[place] + found["theta", name])
            for name, place in sent.places.items()
        ]
        return Theta(sent.mask, np.concatenate(moved).astype(np.float32))


class PrivateLayout:
    """The same under differential privacy: vectors that devices clip, each counting as one.

    No value is beyond what the clip allows, so that bounds are known and nothing is said of them.
    Vectors are a trifle shorter than the clip: rounded, none is longer, not even together with the
    bit that says whether it was within the clip. Noise that devices add has the same deviation in
    steps on every number, so that the bit has coarser ones; where nobody counts it, it is not sent.
    """

    def __init__(self, request: Request, mechanism: Mechanism, devices: int) -> None:
        self._mean, self._mechanism = PrivateMean(request, mechanism), mechanism
        self._bounds = dict(sorted(self._mean.bounds().items())) | self._bit()
        self.sizes: Mapping[Key, int] = {("", n): size for n, (size, _) in self._bounds.items()}
        steps, turns = self.scales(Bounds(), devices, 1).levels, 2 if mechanism.is_shared else 1
        self._shrink = 1 - turns * 2 * np.sqrt(sum(self.sizes.values())) / steps
        if self._shrink < LEAST_SHRINK:
            raise ConfigError(
                f"--privacy.secure-aggregation: {sum(self.sizes.values()):,} values of {devices} "
                "devices are too many to be rounded within the clip; ask fewer devices"
            )

    def _bit(self) -> dict[str, tuple[int, float]]:
        own = self._mechanism
        if not own.is_shared:
            return {WITHIN: (1, 1.0)}
        return {WITHIN: (1, own.bit_noise / own.sum_noise)} if own.counts_bits else {}

    def scales(self, bounds: "Bounds", devices: int, heaviest: int) -> Scales:
        """How values become numbers: by the clip."""
        sizes, known = zip(*self._bounds.values(), strict=True)
        return Scales(sizes, known, 1, devices, reports=False, noise=self._noise(devices))

    def _noise(self, devices: int) -> NoiseShares | None:
        own = self._mechanism
        if own.shared_by is None or not own.is_shared:
            return None
        return NoiseShares(own.sum_noise, devices, fewest_summed(devices, *own.shared_by))

    def weight(self, reply: Reply) -> int:
        """Every device counts the same."""
        return 1

    def values(self, reply: Reply) -> NDArray[np.float64]:
        """A device's clipped vector, and whether it was within the clip."""
        parts, within = self._mean.clipped(reply)
        values = [parts[name] * self._shrink for name in self._bounds if name != WITHIN]
        return np.concatenate([*values, [float(within)] * (WITHIN in self._bounds)])

    def outcome(
        self, mean: Mean, answered: Sequence[int], failed: Mapping[int, str], traffic: Traffic
    ) -> Outcome:
        """The noisy mean that follows from the sum of the vectors."""
        parts = _split(self.sizes, mean.values * len(answered))
        within = float(parts.pop(("", WITHIN), np.zeros(1))[0])
        if not self._mechanism.is_shared:
            within = round(within)
        sums = {name: own for (_, name), own in parts.items()}
        self._mean.add_sum(sums, answered, within)
        return self._mean.outcome(dict(sorted(failed.items())), traffic)


def layout_for(request: Request, devices: int) -> Layout | PrivateLayout:
    """What so many devices sum up to answer a request."""
    if request.mechanism:
        return PrivateLayout(request, request.mechanism, devices)
    return Layout.of(request)


def _split(sizes: Mapping[Key, int], values: NDArray[np.float64]) -> dict[Key, NDArray[np.float64]]:
    """The values of each part."""
    ends = np.cumsum([*sizes.values()])
    return dict(zip(sizes, np.split(values, ends[:-1]), strict=True))


def _possible(name: str, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A rounded variance may be a trifle below zero."""
    return np.maximum(values, 0) if name.endswith(NEVER_NEGATIVE) or name == LOSSES else values


def not_summable(spec: ReplySpec) -> str:
    """Why replies cannot be summed value by value, or nothing."""
    if spec.own_mask:
        return OWN_MASKS
    if spec.open_ended:
        return "asks devices for what fedtiny cannot sum"
    if "accuracy" in spec.metrics:
        return "evaluates on devices' own data, which is not hidden; leave --eval-devices out"
    return ""


def check(method: Method, requests: Iterable[Request]) -> None:
    """Refuse a method that asks devices for what cannot be summed."""
    whys = [not_summable(expected(request)) for request in requests]
    if method.reducer != MEAN:
        whys = [OWN_MASKS]
    if type(method).top_weights is not Method.top_weights:
        whys = [LARGEST_WEIGHTS]
    if why := next(filter(None, whys), ""):
        raise ConfigError(f"--privacy.secure-aggregation: method '{method.name}' {why}")


def remarks(config: Config, requests: Iterable[Request]) -> tuple[str, ...]:
    """What whoever starts such a run should know, in sentences."""
    privacy, devices = config.privacy, config.fleet.asked
    found = ["secure aggregation: replies are not compared with each other (--robustness.bound)"]
    if not privacy.cryptography:
        found.append("secure aggregation is simulated without cryptography: nothing is masked")
    tables = filter(None, (table_for(request, devices) for request in requests))
    if largest := max((4 * table.size for table in tables), default=0):
        found.append(
            f"the largest gradients travel in a table of up to {largest / 1e6:.2f} MB a device, "
            "which shows all their positions, and the gradient at one that a single device has"
        )
    return tuple(found)


def summary(config: Config) -> dict[str, Any]:
    """What a run folder says of it: how many neighbors share masks, and how many are needed."""
    privacy = config.privacy
    if not privacy.secure_aggregation:
        return {}
    count = degree(config.fleet.asked, privacy.neighbors)
    return {
        "secure_aggregation": {
            "neighbors": count,
            "needed": threshold(count, privacy.threshold),
            "cryptography": privacy.cryptography,
        }
    }


@dataclass
class Bounds:
    """The public bound of every part, which follows what devices send."""

    known: dict[str, float] = field(default_factory=dict)
    clipped: list[str] = field(default_factory=list)
    """The parts of which values were clipped in the last exchange."""

    def follow(self, layout: "Layout | PrivateLayout", scales: Scales, mean: Mean) -> None:
        """Widen what was too narrow, and narrow what is far too wide."""
        self.clipped = []
        if not scales.reports:
            return
        told = zip(layout.sizes, scales.bounds, mean.near, mean.clipped, strict=True)
        for key, bound, near, clipped in told:
            if key[1] not in (LOSSES, HOPELESS):
                self.known[_name(key)] = followed(bound, near, clipped)
                self.clipped += [_name(key)] if clipped else []


def _name(key: Key) -> str:
    return " ".join(key)
