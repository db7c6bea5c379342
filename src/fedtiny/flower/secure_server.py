"""The server's wire to nodes under secure aggregation; the protocol is in `federation`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from fedtiny.errors import FedTinyError, ReplyError, SecureAggregationError
from fedtiny.federation.secure_exchange import SecureExchange
from fedtiny.federation.transport import STRAGGLER, Traffic
from fedtiny.flower import messages
from fedtiny.flower.exchange import Exchange, failure
from fedtiny.flower.messages import DONE, Answer, Arrival, Question, SecurePart
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.flower.settings import FlowerSettings
from fedtiny.privacy.secagg.ciphers import KEY_BYTES, SIGNATURE_BYTES, Cryptography
from fedtiny.privacy.secagg.device import Directory, statement
from fedtiny.privacy.secagg.server import Messages
from fedtiny.privacy.secagg.terms import KEYS, MASKED, SEEDS, SHARES, Message

KEY_LOST = "it was started anew and has no key; it joins again"


class Nodes(Protocol):
    """Who plays the devices, and how they are reached."""

    grid: Grid
    spec: NodeSpec
    settings: FlowerSettings

    def name(self, device: int) -> str:
        """A device and its node, for people."""

    def say(self, line: str) -> None:
        """Tell the operator."""


def check_key(arrival: Arrival, session: bytes, listed: Directory | None) -> None:
    """Refuse a node whose key its peers would refuse, as far as the server can know."""
    if arrival.claim is None or not arrival.key:
        raise FedTinyError("it has sent no key for secure aggregation, or not whose it is")
    if listed is None:
        return
    public, signature = arrival.key[:KEY_BYTES], arrival.key[KEY_BYTES:]
    signed = statement(session, arrival.claim, public)
    owner = listed.get(arrival.claim)
    if owner is None or not Cryptography().is_signed(owner, signed, signature):
        raise FedTinyError(
            f"its key is not signed by the node of device {arrival.claim} in flower.secagg_keys"
        )


def key_traffic(devices: Sequence[int]) -> Traffic:
    """What the keys of these devices took when they joined."""
    size = Message(KEYS, 0, 0, {0: bytes(KEY_BYTES + SIGNATURE_BYTES)}).size
    return Traffic(up=size * len(devices))


def secure_part(
    exchange: SecureExchange | None, device: int, keys: Mapping[int, bytes]
) -> SecurePart | None:
    """What a device needs to mask its reply, if it must."""
    if exchange is None:
        return None
    told = exchange.keys_for(device, keys)
    mechanism = exchange.encoding.request.mechanism
    return SecurePart(exchange.terms.message().to_bytes(), told.to_bytes(), mechanism)


def take_masked(exchange: SecureExchange, device: int, data: bytes) -> None:
    """Add what a node has sent to the sum; whatever an honest one never sends is refused."""
    try:
        message = Message.from_bytes(data, MASKED)
        if message.device != device:
            raise SecureAggregationError(f"it is signed by device {message.device}")
        exchange.sum.add(message)
    except SecureAggregationError as error:
        raise ReplyError(str(error)) from error


class NodePeers:
    """The devices of an exchange, asked through the grid once their masked vectors are there."""

    def __init__(
        self, registry: Nodes, nodes: Mapping[int, int], note: Callable[[bool], None]
    ) -> None:
        self._registry, self._nodes = registry, nodes
        self._note = note
        self.traffic = Traffic()

    def seeds(self, asked: Messages) -> Messages:
        """The stage `reveal`, once it is noted that no sum comes of it."""
        self._note(False)
        return self._stage(messages.REVEAL, SEEDS, asked)

    def shares(self, asked: Messages) -> Messages:
        """The stage `unmask`, once it is noted that a sum comes of it."""
        self._note(True)
        return self._stage(messages.UNMASK, SHARES, asked)

    def _stage(self, kind: str, answered: int, asked: Messages) -> Messages:
        """What nodes answer; who is late, gone or refuses does not."""
        registry, found = self._registry, dict[int, Message]()
        devices, contents = {self._nodes[device]: device for device in asked}, {}
        for device, message in asked.items():
            question = Question(registry.spec.key, device, message.to_bytes())
            contents[self._nodes[device]] = question.records()
            self.traffic += Traffic(down=message.size)
        exchange = Exchange(registry.grid, registry.settings.unmask_timeout)
        exchange.send(kind, contents)
        for node, reply in exchange.replies():
            try:
                found[devices[node]] = self._read(reply, answered)
            except FedTinyError as error:
                self._tell(kind, devices[node], str(error))
        for node in exchange.awaited:
            self._tell(kind, devices[node], STRAGGLER)
        return found

    def _read(self, reply: FlowerMessage, kind: int) -> Message:
        if reply.has_error():
            raise FedTinyError(failure(reply.error))
        answer = Answer.read(reply.content)
        if answer.status != DONE:
            raise FedTinyError(answer.text)
        self.traffic += Traffic(up=len(answer.reply))
        return Message.from_bytes(answer.reply, kind)

    def _tell(self, kind: str, device: int, why: str) -> None:
        stage = kind.removeprefix("query.")
        self._registry.say(f"{self._registry.name(device)} does not answer '{stage}': {why}")
