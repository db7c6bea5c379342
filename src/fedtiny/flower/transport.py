"""The transport to real devices: the same questions as in a simulation, over a Flower grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Message

from fedtiny.errors import FedTinyError, ReplyError
from fedtiny.federation.messages import Request
from fedtiny.federation.reply_validator import Arrived, ReplyValidator, collect
from fedtiny.federation.transport import ABSENT, STRAGGLER, Outcome, Traffic
from fedtiny.federation.wire import NOTHING_KNOWN, Known, encode_request
from fedtiny.flower import messages
from fedtiny.flower.exchange import LOST, UNAVAILABLE, Exchange
from fedtiny.flower.messages import DONE, LACKS, Answer, Question
from fedtiny.flower.node_registry import NodeRegistry
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.flower.spool import Spool
from fedtiny.sparse.theta import Theta

MAX_SENDINGS = 2  # of one question to one node: what it should hold left out, then all of it


@dataclass
class Asking:
    """A question on its way: what was sent to whom, and who failed."""

    request: Request
    nodes: Mapping[int, int]
    """The node of each device that is asked and there."""
    exchange: Exchange
    spool: Spool
    validator: ReplyValidator
    payloads: dict[Known, bytes] = field(default_factory=dict)
    sendings: dict[int, int] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)

    def payload(self, known: Known) -> bytes:
        """The request for a device that holds this; encoded once, however many do."""
        if known not in self.payloads:
            self.payloads[known] = encode_request(self.request, known)
        return self.payloads[known]


class FlowerTransport:
    """Asks nodes through the SuperLink, spools their replies and folds them in device order."""

    def __init__(self, registry: NodeRegistry) -> None:
        self.registry = registry
        self._known: dict[int, Known] = {}

    @property
    def spec(self) -> NodeSpec:
        """What nodes were given."""
        return self.registry.spec

    @property
    def devices(self) -> Sequence[int]:
        return range(self.registry.assignments.size)

    def present(self) -> Sequence[int]:
        return list(self._there())

    def _there(self) -> dict[int, int]:
        least = self.spec.config.fleet.min_replies
        return self.registry.present(expected=least, least=least)

    def ask(self, devices: Sequence[int], request: Request, reducer: str) -> Outcome:
        there = self._there()
        self.registry.note()
        exchange = Exchange(self.registry.grid, self.registry.settings.timeout)
        with Spool.within(self.registry.folder.spool) as spool:
            nodes = {device: there[device] for device in sorted(devices) if device in there}
            validator = ReplyValidator(request, reducer, self.spec.config)
            asking = Asking(request, nodes, exchange, spool, validator)
            asking.failed |= {device: ABSENT for device in devices if device not in there}
            self._send(asking, list(nodes))
            self._collect(asking)
            self.registry.note()
            return self._folded(asking)

    def _send(self, asking: Asking, devices: Sequence[int], with_spec: bool = False) -> None:
        """Send each device what it lacks of the request, and count it."""
        contents, theta = {}, asking.request.theta
        spec = self.spec.text if with_spec else ""
        for device in devices:
            payload = asking.payload(self._known.get(device, NOTHING_KNOWN))
            question = Question(self.spec.key, device, payload, spec)
            contents[asking.nodes[device]] = question.records()
            asking.traffic += Traffic(down=len(payload))
            self.registry.traffic += Traffic(down=len(spec.encode()))
            asking.sendings[device] = asking.sendings.get(device, 0) + 1
            self._known[device] = Known.of(theta)
        lost = asking.exchange.send(messages.kind(asking.request), contents)
        for device in devices:
            if asking.nodes[device] in lost:
                self._fail(asking, device, ABSENT)

    def _collect(self, asking: Asking) -> None:
        """Spool every reply; a node that lacks something gets it and is asked again."""
        devices = {node: device for device, node in asking.nodes.items()}
        for node, message in asking.exchange.replies():
            device = devices[node]
            try:
                answer = _answer(message)
            except FedTinyError as error:
                self._fail(asking, device, str(error))
                continue
            if answer.status == DONE:
                self._keep(asking, device, answer.reply)
            elif answer.status == LACKS and asking.sendings[device] < MAX_SENDINGS:
                self._known[device] = NOTHING_KNOWN
                self._send(asking, [device], with_spec=answer.text == messages.SPEC)
            else:
                self._fail(asking, device, answer.text)
        for node in asking.exchange.awaited:
            self._fail(asking, devices[node], STRAGGLER)

    def _keep(self, asking: Asking, device: int, reply: bytes) -> None:
        """Put a reply by until all are there, unless no honest one is as long."""
        try:
            asking.validator.check_length(len(reply))
            asking.spool.put(device, reply)
        except ReplyError as refusal:
            asking.traffic += Traffic(up=len(reply))
            self._fail(asking, device, str(refusal))

    def _folded(self, asking: Asking) -> Outcome:
        """The replies, averaged in device order, one in memory at a time."""
        assigned = self.registry.assignments.assigned
        arrived = (
            Arrived(device, assigned[device].samples, data, len(data))
            for device, data in asking.spool.in_order()
        )
        outcome = collect(arrived, asking.validator, asking.failed, asking.traffic)
        for device in [device for device in outcome.failed if device not in asking.failed]:
            self._fail(asking, device, outcome.failed[device])
        return outcome

    def _fail(self, asking: Asking, device: int, why: str) -> None:
        """Leave a device out; what it holds now is not known, so it gets all next time."""
        asking.failed[device] = why
        self._known.pop(device, None)
        name, action = self.registry.assignments.name(device), asking.request.action
        self.registry.say(f"{name} is left out of '{action}': {why}")

    def state(self) -> dict[str, Any]:
        return {"flower": True}

    def restore(self, state: Mapping[str, Any], theta: Theta) -> None:
        """To Flower a resumed run is a new one, in which no node remembers anything."""

    def close(self) -> None:
        pass


def _answer(message: Message) -> Answer:
    """What a node answered; a FedTinyError says why there is no answer."""
    if not message.has_error():
        return Answer.read(message.content)
    code, reason = message.error.code, message.error.reason
    if code == UNAVAILABLE:
        raise FedTinyError(ABSENT)
    if code in LOST:
        raise FedTinyError(STRAGGLER)
    raise FedTinyError(f"its ClientApp failed: {messages.told(reason or f'code {code}')}")
