"""Secure aggregation in a run, whatever carries its messages: how replies become masked vectors on
devices, and how the server sums them."""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny import config as configs
from fedtiny.config import Config
from fedtiny.errors import SecureAggregationError
from fedtiny.federation import wire
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.private_mean import PrivateMean
from fedtiny.federation.secure import Bounds, Layout, PrivateLayout, layout_for
from fedtiny.federation.secure_gradients import BOUND, FIRST_BOUND, GradientTable, table_for
from fedtiny.federation.transport import ABSENT, NO_SUM, Outcome, Traffic
from fedtiny.privacy.secagg.ciphers import Ciphers
from fedtiny.privacy.secagg.graph import FEWEST
from fedtiny.privacy.secagg.quantize import Scales
from fedtiny.privacy.secagg.server import Peers, SecureSum
from fedtiny.privacy.secagg.terms import KEYS, Message, Terms
from fedtiny.randomness import generator

SECURE = "secure aggregation"  # what a transport saves of it
RUN_BYTES = 16

Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Encoding:
    """How the replies to a request become numbers of the ring, the same for all devices."""

    request: Request
    layout: Layout | PrivateLayout
    scales: Scales
    gradients: GradientTable | None

    @classmethod
    def planned(cls, request: Request, devices: int, heaviest: int, bounds: Bounds) -> "Encoding":
        """By the bounds that are known, for so many devices of at most so many samples."""
        layout, table = layout_for(request, devices), table_for(request, devices)
        bound = bounds.known.get(BOUND, FIRST_BOUND)
        gradients = GradientTable(request, table, bound, heaviest) if table else None
        return cls(request, layout, layout.scales(bounds, devices, heaviest), gradients)

    @classmethod
    def told(cls, request: Request, terms: Terms) -> "Encoding":
        """As a device reads it in the terms of an exchange; a clip leaves no choice of bounds."""
        shared_by = request.mechanism and request.mechanism.shared_by
        if shared_by and shared_by != (terms.neighbors, terms.threshold):
            raise SecureAggregationError("noise is scaled for other terms than the exchange has")
        plan = cls.planned(request, len(terms.participants), 1, Bounds())
        scales = plan.scales.told(terms.scales)
        gradients = plan.gradients and plan.gradients.told(terms.scales, scales.heaviest)
        found = replace(plan, scales=scales, gradients=gradients)
        planned = plan.scales if request.mechanism else replace(scales, devices=plan.scales.devices)
        if found.to_bytes() != terms.scales or scales != planned:
            raise SecureAggregationError("the scales of an exchange are not those of its request")
        return found

    def to_bytes(self) -> bytes:
        """As devices are told it."""
        return self.scales.to_bytes() + (self.gradients.to_bytes() if self.gradients else b"")

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return self.scales.count + (self.gradients.size if self.gradients else 0)

    def numbers(self, reply: Reply, seed: int) -> Words:
        """A device's reply, rounded at random by draws of its own."""
        purpose = f"stochastic rounding {self.request.id}"
        draw = generator(seed, purpose, round=self.request.round, device=reply.device)
        weight = self.layout.weight(reply)
        numbers = self.scales.quantized(self.layout.values(reply), weight, draw)
        if not self.gradients:
            return numbers
        return np.concatenate([numbers, self.gradients.filled(reply, weight, draw)])

    @property
    def noise_multiplier(self) -> float:
        """That of the noise that devices add to their numbers; 0 if they add none."""
        mechanism = self.request.mechanism
        return mechanism.noise_multiplier if mechanism and self.scales.noise else 0.0

    def noisy(self, numbers: Words, seed: bytes) -> Words:
        """The numbers with a device's share of the noise, if it adds one; a seed serves once."""
        return self.scales.noisy(numbers, seed) if self.scales.noise else numbers


class SecureServer:
    """The server's end in a run: the bounds of values, and a number for every exchange.

    Its name of the run is a new one whenever it is made, so that devices make new keys for a run
    that is continued, and no mask ever serves twice. The sums do not depend on them.
    """

    def __init__(self, config: Config, ciphers: Ciphers) -> None:
        self.config, self.ciphers = config, ciphers
        self.run = secrets.token_bytes(RUN_BYTES)
        self.spec = json.dumps(configs.to_dict(config))
        """The run as devices know it, which every mask is bound to."""
        self.bounds = Bounds()
        self.number = 0
        self.registered: set[int] = set()
        """The devices whose key was counted among the bytes of a run, in this process or before."""

    def terms(self, request: Request) -> Terms:
        """What all know of the terms of an exchange before it begins."""
        return terms_of(self.run, self.spec, request, self.config)

    def opened(self, request: Request, devices: Sequence[int], heaviest: int) -> "SecureExchange":
        """An exchange with these devices, of which none has more samples than the heaviest."""
        self.number += 1
        encoding = Encoding.planned(request, len(devices), heaviest, self.bounds)
        told = Message(0, self.number, 0, dict.fromkeys(devices, b""), encoding.to_bytes())
        return SecureExchange(self, encoding, self.terms(request).told(told))

    def newly_registered(self, devices: Sequence[int]) -> list[int]:
        """Those of the devices whose key comes for the first time."""
        found = [device for device in devices if device not in self.registered]
        self.registered |= set(found)
        return found

    def state(self) -> dict[str, Any]:
        """What a resumed run needs; no key is saved."""
        return {"bounds": dict(self.bounds.known), "registered": sorted(self.registered)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up bounds saved before; devices make new keys."""
        self.bounds = Bounds({str(name): float(own) for name, own in state["bounds"].items()})
        self.registered = {int(device) for device in state["registered"]}


def terms_of(run: bytes, spec: str, request: Request, config: Config) -> Terms:
    """The terms but for who takes part and the scales, which are told."""
    privacy, context = config.privacy, context_of(spec, request)
    named = (run, 0, request.round, request.id, ())
    return Terms(*named, privacy.neighbors, privacy.threshold, context=context)


def context_of(spec: str, request: Request) -> bytes:
    """The hash of a whole question: the run's spec, the mechanism, and all values of the request.

    An id of a request or a version of a theta has 64 bits, of which a server can find two alike.
    """
    mechanism = json.dumps(request.mechanism and request.mechanism.to_plain())
    mask = request.theta.mask
    asked = wire.encode_request(request, wire.Known(mask.version))
    parts = (spec.encode(), mechanism.encode(), mask.digest, asked)
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


@dataclass
class SecureExchange:
    """One question to devices through all stages, as the server sees it."""

    server: SecureServer
    encoding: Encoding
    terms: Terms
    why: str = ""
    """Why there is no sum, if there is none."""
    sum: SecureSum = field(init=False)

    def __post_init__(self) -> None:
        self.sum = SecureSum(self.terms, self.encoding.size, self.server.ciphers)

    def keys_for(self, device: int, entries: Mapping[int, bytes]) -> Message:
        """The keys of its neighbors, out of all signed keys, as a device is told them."""
        peers = {peer: entries[peer] for peer in self.terms.graph[device]}
        return Message(KEYS, 0, device, peers)

    def outcome(self, peers: Peers, failed: Mapping[int, str]) -> Outcome:
        """The mean of all survivors, or nothing if too few are left; `failed` sent no vector."""
        devices, request = self.terms.participants, self.encoding.request
        try:
            found = self._found(self.sum.result(peers), failed)
        except SecureAggregationError as error:
            self.why = str(error)
            found = no_sum(request, devices, failed)
        finally:
            self.sum.close()
        return replace(found, exchange=self.terms.record())

    def _found(self, total: Words, failed: Mapping[int, str]) -> Outcome:
        """What a sum says; bounds follow from it."""
        encoding, bounds, answered = self.encoding, self.server.bounds, self.sum.survivors
        dense, table = np.split(total, [encoding.scales.count])
        mean = encoding.scales.mean(dense, len(answered))
        bounds.follow(encoding.layout, encoding.scales, mean)
        lost = {device: ABSENT for device in self.terms.participants if device not in answered}
        found = encoding.layout.outcome(mean, answered, lost | dict(failed), Traffic())
        found = replace(found, clipped=tuple(bounds.clipped))
        if not encoding.gradients:
            return found
        bounds.known[BOUND] = encoding.gradients.next_bound(table)
        return replace(found, gradients=encoding.gradients.read(table, mean.weight))


def is_enough(devices: Sequence[int]) -> bool:
    """Whether a sum of so many devices hides one from another."""
    return len(devices) >= FEWEST


def no_sum(request: Request, reached: Sequence[int], failed: Mapping[int, str]) -> Outcome:
    """Nothing is learned: too few devices are left for a sum that hides each."""
    every = dict(sorted((dict.fromkeys(reached, NO_SUM) | dict(failed)).items()))
    if request.mechanism:
        return PrivateMean(request, request.mechanism).outcome(every, Traffic())
    return Outcome(answered=(), failed=every)
