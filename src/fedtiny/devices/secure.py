"""Simulated devices under secure aggregation: both ends of the protocol, and a wire between."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from fedtiny.config import Config
from fedtiny.devices.device_data import development_count
from fedtiny.errors import FedTinyError, SecureAggregationError
from fedtiny.federation.messages import Request
from fedtiny.federation.reply_validator import Arrived, ReplyValidator
from fedtiny.federation.secure_exchange import (
    Encoding,
    SecureExchange,
    SecureServer,
    is_enough,
    no_sum,
)
from fedtiny.federation.transport import ABSENT, Outcome, Traffic
from fedtiny.federation.verbs import BnStatistics, Losses
from fedtiny.privacy.secagg.ciphers import (
    Cryptography,
    NoCryptography,
    NoSigningKey,
    SigningKey,
)
from fedtiny.privacy.secagg.device import SecureDevice
from fedtiny.privacy.secagg.server import Messages
from fedtiny.privacy.secagg.terms import Message, Terms
from fedtiny.randomness import generator


class SecureFleet:
    """The devices of a run that send masked vectors, and the server's end that sums them.

    Keys come from the operating system and live as long as this object, so a run that is continued
    has new ones.
    """

    def __init__(self, config: Config) -> None:
        ciphers = Cryptography() if config.privacy.cryptography else NoCryptography()
        self.config = config
        self.server = SecureServer(config, ciphers)
        self.directory: dict[int, bytes] = {}
        self.devices: dict[int, SecureDevice] = {}

    def device(self, number: int) -> SecureDevice:
        """A device; when it first takes part its node's key enters the list of all nodes."""
        if number not in self.devices:
            privacy, server = self.config.privacy, self.server
            signer = SigningKey() if privacy.cryptography else NoSigningKey()
            self.directory[number] = signer.public
            self.devices[number] = SecureDevice(
                *(number, server.run, signer, self.directory, server.ciphers),
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
        if not is_enough(reached):
            return replace(no_sum(request, reached, left_out), traffic=traffic)
        wire = _Wire(self, validator, self.server.opened(request, reached, heaviest), traffic)
        wire.open()
        for one in arrived:
            try:
                wire.take(one)
            except FedTinyError as error:
                left_out[one.device] = str(error)
        outcome = wire.exchange.outcome(wire, left_out)
        return replace(outcome, traffic=wire.traffic)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs; no key is saved."""
        return self.server.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up what was saved before; devices make new keys."""
        self.server.restore(state)


def heaviest(request: Request, samples: Iterable[int], ratio: float) -> int:
    """The most samples that a device stands for in its answer; all devices know it."""
    measures = any(isinstance(verb, BnStatistics | Losses) for verb in request.program)
    return max(development_count(own, ratio) if measures else own for own in samples)


@dataclass
class _Wire:
    """What goes to and fro in one exchange, with its bytes."""

    fleet: SecureFleet
    validator: ReplyValidator
    exchange: SecureExchange
    traffic: Traffic
    told: dict[int, Terms] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.request: Request = self.validator.request
        self._encodes = self.fleet.config.fleet.wire == "encode"

    def open(self) -> None:
        """Tell every device the terms and the keys of its neighbors, each signed by its node."""
        fleet, terms = self.fleet, self.exchange.terms
        keys = {k: fleet.device(k).key().entries[k] for k in terms.participants}
        for device in fleet.server.newly_registered(terms.participants):
            self._up(fleet.device(device).key())
        known = fleet.server.terms(self.request) if self._encodes else terms
        for device in terms.participants:
            received = self._down(terms.message())
            self.told[device] = known.told(received) if self._encodes else terms
            fleet.device(device).meet(self._down(self.exchange.keys_for(device, keys)))

    def take(self, arrived: Arrived) -> None:
        """A device examines its own reply, rounds it to the ring, masks it and sends it."""
        reply, terms = self.validator.accepted(arrived), self.told[arrived.device]
        shared = self.exchange.encoding
        encoding = Encoding.told(self.request, terms) if self._encodes else shared
        device, seed = self.fleet.device(reply.device), self.fleet.config.seed
        numbers, mechanism = encoding.numbers(reply, seed), self.request.mechanism
        if mechanism:
            own = mechanism.share_seed(reply.device, numbers.tobytes())
            numbers = encoding.noisy(numbers, own)
        sent = device.masked(terms, numbers, self.request.round, self.request.id)
        self.exchange.sum.add(self._up(sent))

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
        if not config.fleet.fail_rate:
            return False
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
