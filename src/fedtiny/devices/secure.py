"""Simulated devices under secure aggregation: both ends of the protocol, and a wire between."""

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedtiny.config import Config
from fedtiny.errors import FedTinyError, SecureAggregationError
from fedtiny.federation.messages import Request
from fedtiny.federation.private_mean import PrivateMean
from fedtiny.federation.reply_validator import Arrived, ReplyValidator
from fedtiny.federation.secure import Bounds, layout_for
from fedtiny.federation.secure_gradients import BOUND, FIRST_BOUND, GradientTable, table_for
from fedtiny.federation.transport import ABSENT, NO_SUM, Outcome, Traffic
from fedtiny.privacy.secagg.ciphers import (
    Cryptography,
    NoCryptography,
    NoSigningKey,
    SigningKey,
)
from fedtiny.privacy.secagg.device import SecureDevice
from fedtiny.privacy.secagg.graph import FEWEST
from fedtiny.privacy.secagg.quantize import Scales
from fedtiny.privacy.secagg.server import Messages, SecureSum
from fedtiny.privacy.secagg.terms import KEYS, Message, Terms
from fedtiny.randomness import generator


class SecureFleet:
    """The devices of a run that send masked vectors, and the server's end that sums them.

    Keys come from the operating system and live as long as this object, so a run that is continued
    has new ones and no mask ever serves twice. The sum does not depend on them.
    """

    def __init__(self, config: Config) -> None:
        self.config, asked = config, config.privacy
        self.ciphers = Cryptography() if asked.cryptography else NoCryptography()
        self.run = secrets.token_bytes(16)
        self.directory: dict[int, bytes] = {}
        self.devices: dict[int, SecureDevice] = {}
        self.bounds = Bounds()
        self.number = 0
        self.registered: set[int] = set()
        """The devices that have sent their key, in this process or before."""

    def device(self, number: int) -> SecureDevice:
        """A device; when it first takes part its node's key enters the list of all nodes."""
        if number not in self.devices:
            privacy = self.config.privacy
            signer = SigningKey() if privacy.cryptography else NoSigningKey()
            self.directory[number] = signer.public
            self.devices[number] = SecureDevice(
                *(number, self.run, signer, self.directory, self.ciphers),
                neighbors=privacy.neighbors,
                threshold=privacy.threshold,
            )
        return self.devices[number]

    def collect(
        self,
        arrived: Iterable[Arrived],
        validator: ReplyValidator,
        failed: Mapping[int, str],
        traffic: Traffic,
        asked: Sequence[int],
        heaviest: int,
    ) -> Outcome:
        """What devices answer, each masked, and the mean that follows from the sum.

        `asked` are all devices of the request, `heaviest` the most samples that one stands for.
        """
        reached = [device for device in asked if failed.get(device) != ABSENT]
        left_out, request = dict(failed), validator.request
        if len(reached) < FEWEST:
            return _no_sum(request, reached, left_out, traffic)
        exchange = _Exchange(self, validator, reached, heaviest, traffic)
        with closing(exchange.sum):
            exchange.open()
            for one in arrived:
                try:
                    exchange.take(one)
                except FedTinyError as error:
                    left_out[one.device] = str(error)
            try:
                return exchange.outcome(left_out)
            except SecureAggregationError:
                return _no_sum(request, reached, left_out, exchange.traffic)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs; no key is saved."""
        return {"bounds": dict(self.bounds.known), "registered": sorted(self.registered)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up bounds saved before; devices make new keys."""
        self.bounds = Bounds({str(name): float(own) for name, own in state["bounds"].items()})
        self.registered = {int(device) for device in state["registered"]}


def _no_sum(
    request: Request, reached: Sequence[int], failed: Mapping[int, str], traffic: Traffic
) -> Outcome:
    """Nothing is learned: too few devices are left for a sum that hides each."""
    every = dict(sorted((dict.fromkeys(reached, NO_SUM) | dict(failed)).items()))
    if request.mechanism:
        return PrivateMean(request, request.mechanism).outcome(every, traffic)
    return Outcome(answered=(), failed=every, traffic=traffic)


@dataclass
class _Exchange:
    """One question to the devices, through all stages."""

    fleet: SecureFleet
    validator: ReplyValidator
    devices: Sequence[int]
    heaviest: int
    traffic: Traffic

    def __post_init__(self) -> None:
        self.request: Request = self.validator.request
        self.layout = layout_for(self.request, len(self.devices))
        fleet, privacy = self.fleet, self.fleet.config.privacy
        many = len(self.devices)
        self.scales: Scales = self.layout.scales(fleet.bounds, many, self.heaviest)
        fleet.number += 1
        told = (fleet.run, fleet.number, self.request.round, self.request.id, tuple(self.devices))
        limits = (privacy.neighbors, privacy.threshold)
        table, bound = table_for(self.request, many), fleet.bounds.known.get(BOUND, FIRST_BOUND)
        self.gradients = table and GradientTable(self.request, table, bound, self.heaviest)
        scales = self.scales.to_bytes() + (self.gradients.to_bytes() if self.gradients else b"")
        self.terms = Terms(*told, *limits, scales)
        size = self.scales.count + (self.gradients.size if self.gradients else 0)
        self.sum = SecureSum(self.terms, size, fleet.ciphers)
        self.told: dict[int, Terms] = {}
        self._encodes = fleet.config.fleet.wire == "encode"

    def open(self) -> None:
        """Tell every device the terms and the keys of its neighbors, each signed by its node."""
        fleet = self.fleet
        keys = {k: fleet.device(k).key().entries[k] for k in self.devices}
        for device in self.devices:
            if device not in fleet.registered:
                self._up(fleet.device(device).key())
                fleet.registered.add(device)
        for device in self.devices:
            peers = {peer: keys[peer] for peer in self.terms.graph[device]}
            received = self._down(self.terms.message())
            self.told[device] = self.terms.told(received) if self._encodes else self.terms
            fleet.device(device).meet(self._down(Message(KEYS, 0, device, peers)))

    def take(self, arrived: Arrived) -> None:
        """A device examines its own reply, rounds it to the ring, masks it and sends it."""
        reply, request = self.validator.accepted(arrived), self.request
        purpose = f"stochastic rounding {request.id}"
        key = {"round": request.round, "device": reply.device}
        draw = generator(self.fleet.config.seed, purpose, **key)
        weight = self.layout.weight(reply)
        terms = self.told[reply.device]
        scales = self.scales.told(terms.scales) if self._encodes else self.scales
        numbers = scales.quantized(self.layout.values(reply), weight, draw)
        if request.mechanism and scales.noise:
            seed = request.mechanism.share_seed(reply.device, numbers.tobytes())
            numbers = scales.noisy(numbers, seed)
        if self.gradients:
            table = self.gradients.filled(reply, weight, draw)
            numbers = np.concatenate([numbers, table])
        device = self.fleet.device(reply.device)
        message = device.masked(terms, numbers, request.round, request.id)
        self.sum.add(self._up(message))

    def outcome(self, failed: Mapping[int, str]) -> Outcome:
        """The mean of all survivors; bounds follow from it."""
        total = self.sum.result(self)
        answered = self.sum.survivors
        dense, table = np.split(total, [self.scales.count])
        mean = self.scales.mean(dense, len(answered))
        self.fleet.bounds.follow(self.layout, self.scales, mean)
        lost = {device: ABSENT for device in self.devices if device not in answered}
        found = self.layout.outcome(mean, answered, lost | dict(failed), self.traffic)
        found = replace(found, clipped=tuple(self.fleet.bounds.clipped))
        if not self.gradients:
            return found
        self.fleet.bounds.known[BOUND] = self.gradients.next_bound(table)
        return replace(found, gradients=self.gradients.read(table, mean.weight))

    def seeds(self, asked: Messages) -> Messages:
        """The stage `reveal`."""
        return self._stage(asked, lambda own, got: own.seeds(got.number, list(got.entries)))

    def shares(self, asked: Messages) -> Messages:
        """The stage `unmask`."""
        return self._stage(asked, lambda own, got: own.shares(got.number, got.entries))

    def _stage(self, asked: Messages, told: Callable[[SecureDevice, Message], Message]) -> Messages:
        """What devices answer; one that is out of reach, or refuses, does not."""
        answers = {}
        for device, message in asked.items():
            received = self._down(message)
            if not self._is_lost(device):
                with suppress(SecureAggregationError):
                    answers[device] = self._up(told(self.fleet.device(device), received))
        return answers

    def _is_lost(self, device: int) -> bool:
        """Whether the device is simulated to be out of reach by now."""
        config, request = self.fleet.config, self.request
        purpose = f"trouble unmasking {request.action}"
        draw = generator(config.seed, purpose, round=request.round, device=device)
        return bool(draw.random() < config.fleet.fail_rate)

    def _up(self, message: Message) -> Message:
        self.traffic += Traffic(up=message.size)
        return self._carried(message)

    def _down(self, message: Message) -> Message:
        self.traffic += Traffic(down=message.size)
        return self._carried(message)

    def _carried(self, message: Message) -> Message:
        """The message as it arrives."""
        return Message.from_bytes(message.to_bytes(), message.kind) if self._encodes else message
