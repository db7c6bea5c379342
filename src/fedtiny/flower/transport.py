"""Nodes behind Flower's grid as a transport: a question to each, and one outcome of all answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fedtiny.devices.secure import heaviest
from fedtiny.errors import FedTinyError, ReplyError
from fedtiny.federation.messages import Request
from fedtiny.federation.reply_validator import Arrived, ReplyValidator, collect
from fedtiny.federation.secure_exchange import (
    SECURE,
    SecureExchange,
    SecureServer,
    is_enough,
    no_sum,
)
from fedtiny.federation.transport import ABSENT, NO_SUM, STRAGGLER, Outcome, Traffic
from fedtiny.federation.wire import NOTHING_KNOWN, Known, encode_request
from fedtiny.flower import messages
from fedtiny.flower.exchange import Exchange, Spool, failure
from fedtiny.flower.messages import DONE, LACKS, Answer, Question
from fedtiny.flower.node_registry import NodeRegistry
from fedtiny.flower.question_journal import QuestionJournal
from fedtiny.flower.secure_server import (
    KEY_LOST,
    NodePeers,
    key_traffic,
    secure_part,
    take_masked,
)
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
    secure: SecureExchange | None = None
    """Under secure aggregation, the exchange in which replies are summed unseen."""
    keys: Mapping[int, bytes] = field(default_factory=dict)
    """The signed keys of its devices, when it began."""

    def payload(self, known: Known) -> bytes:
        """The request for a device that holds this; encoded once, however many do."""
        if known not in self.payloads:
            self.payloads[known] = encode_request(self.request, known)
        return self.payloads[known]


class FlowerTransport:
    """Asks nodes through the SuperLink, spools their replies and folds them in device order."""

    def __init__(self, registry: NodeRegistry, secure: SecureServer | None = None) -> None:
        self.registry, self.secure = registry, secure
        self.spec = registry.spec
        self._known: dict[int, Known] = {}
        self._journal = QuestionJournal(registry.folder.questions)

    @property
    def devices(self) -> Sequence[int]:
        return range(self.registry.size)

    def present(self) -> Sequence[int]:
        return list(self._there())

    def _there(self) -> dict[int, int]:
        least = self.spec.config.fleet.min_replies
        return self.registry.present(expected=least, least=least)

    def ask(
        self,
        devices: Sequence[int],
        request: Request,
        reducer: str,
        top_weights: Mapping[str, int] | None = None,
    ) -> Outcome:
        there = self._there()
        self.registry.note()
        exchange = Exchange(self.registry.grid, self.registry.settings.timeout)
        with Spool.within(self.registry.folder.spool) as spool:
            nodes = {device: there[device] for device in sorted(devices) if device in there}
            validator = ReplyValidator(request, reducer, self.spec.config, top_weights)
            asking = Asking(request, nodes, exchange, spool, validator)
            asking.failed |= {device: ABSENT for device in devices if device not in there}
            if self.secure:
                return self._summed(asking, self.secure)
            self._send(asking, list(nodes))
            self._collect(asking)
            self.registry.note()
            return self._folded(asking)

    def _summed(self, asking: Asking, secure: SecureServer) -> Outcome:
        """The mean of replies that nobody sees, or none if too few devices are left."""
        request, devices = asking.request, tuple(asking.nodes)
        if not is_enough(devices):
            return self._nothing(asking)
        config, assigned = self.spec.config, self.registry.assigned.values()
        samples = self.registry.shares or [node.samples for node in assigned]
        most = heaviest(request, samples, config.selection.development_ratio)
        exchange = asking.secure = secure.opened(request, devices, most)
        if self._exceeds_budget(request, exchange):
            self.registry.say(
                f"'{request.action}' counts for nothing: the budget has no room for a second sum "
                "in the place of one that was seen before the run was resumed"
            )
            return self._nothing(asking)
        asking.keys = dict(self.registry.keys)
        asking.traffic += key_traffic(secure.newly_registered(devices))
        self._send(asking, list(devices))
        self._collect(asking)
        for device, why in self._journal.left_out(exchange.terms.question).items():
            exchange.sum.leave_out(device)
            self._fail(asking, device, why)
        peers = NodePeers(self.registry, asking.nodes, partial(self._note, asking, exchange))
        outcome = exchange.outcome(peers, asking.failed)
        for device, why in outcome.failed.items():
            if device not in asking.failed and why != NO_SUM:
                self._fail(asking, device, why)
        if exchange.why:
            self.registry.say(f"'{request.action}' counts for nothing: {exchange.why}")
        self.registry.note()
        traffic, releases = asking.traffic + peers.traffic, self._releases(request)
        return replace(outcome, traffic=traffic, releases=releases)

    def _nothing(self, asking: Asking) -> Outcome:
        """Nobody is asked; sums that were shown in the place of this one still count."""
        nothing = no_sum(asking.request, tuple(asking.nodes), asking.failed)
        return replace(nothing, releases=self._releases(asking.request))

    def _exceeds_budget(self, request: Request, exchange: SecureExchange) -> bool:
        """Whether a run with a budget has shown another sum in the place of this one."""
        mechanism, budget = request.mechanism, self.spec.config.privacy.epsilon
        if mechanism is None or budget is None:
            return False
        return self._journal.has_another(mechanism.number, exchange.terms.question)

    def _note(self, asking: Asking, exchange: SecureExchange, shows: bool) -> None:
        """Write down what is unmasked next, if the noise in it is the devices'."""
        mechanism, survivors = asking.request.mechanism, exchange.sum.survivors
        if mechanism and mechanism.is_shared:
            lost = set(exchange.terms.participants) - set(survivors)
            left_out = {device: asking.failed.get(device, ABSENT) for device in sorted(lost)}
            self._journal.note(mechanism.number, exchange.terms.question, left_out, shows)

    def _releases(self, request: Request) -> int:
        """How many sums were shown in the place of this one, also before the run was resumed."""
        mechanism = request.mechanism
        return max(1, self._journal.sums(mechanism.number)) if mechanism else 1

    def _send(self, asking: Asking, devices: Sequence[int], with_spec: bool = False) -> None:
        """Send each device what it lacks of the request, and count it."""
        contents, theta = {}, asking.request.theta
        spec = self.spec.text if with_spec else ""
        for device in devices:
            payload = asking.payload(self._known.get(device, NOTHING_KNOWN))
            secure = secure_part(asking.secure, device, asking.keys)
            question = Question(self.spec.key, device, payload, spec, secure)
            contents[asking.nodes[device]] = question.records()
            asking.traffic += Traffic(down=len(payload) + (secure.size if secure else 0))
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
                if message.has_error():
                    raise FedTinyError(failure(message.error))
                answer = Answer.read(message.content)
            except FedTinyError as error:
                self._fail(asking, device, str(error))
                continue
            if answer.status == DONE:
                self._keep(asking, device, answer.reply)
            elif self._has_lost_its_key(asking, answer):
                self.registry.keys.pop(device, None)
                self._fail(asking, device, KEY_LOST)
            elif answer.status == LACKS and asking.sendings[device] < MAX_SENDINGS:
                self._known[device] = NOTHING_KNOWN
                self._send(asking, [device], with_spec=answer.text == messages.SPEC)
            else:
                self._fail(asking, device, answer.text)
        for node in asking.exchange.awaited:
            self._fail(asking, devices[node], STRAGGLER)

    def _has_lost_its_key(self, asking: Asking, answer: Answer) -> bool:
        """Whether a node that was started anew must join again before it can mask a reply."""
        return bool(asking.secure) and answer.status == LACKS and answer.text == messages.SPEC

    def _keep(self, asking: Asking, device: int, reply: bytes) -> None:
        """Put a reply by until all are there, unless no honest one is as long."""
        try:
            if asking.secure:
                asking.traffic += Traffic(up=len(reply))
                take_masked(asking.secure, device, reply)
                return
            asking.validator.check_length(len(reply))
            asking.spool.put(device, reply)
        except ReplyError as refusal:
            asking.traffic += Traffic(up=len(reply))
            self._fail(asking, device, str(refusal))

    def _folded(self, asking: Asking) -> Outcome:
        """The replies, averaged in device order, one in memory at a time."""
        assigned = self.registry.assigned
        arrived = (
            Arrived(device, assigned[device].samples, data, len(data))
            for device, data in asking.spool.in_order()
        )
        samples = sum(node.samples for node in assigned.values())
        outcome = collect(arrived, asking.validator, asking.failed, asking.traffic, samples)
        for device in [device for device in outcome.failed if device not in asking.failed]:
            self._fail(asking, device, outcome.failed[device])
        return outcome

    def _fail(self, asking: Asking, device: int, why: str) -> None:
        """Leave a device out; what it holds now is not known, so it gets all next time."""
        asking.failed[device] = why
        self._known.pop(device, None)
        name, action = self.registry.name(device), asking.request.action
        self.registry.say(f"{name} is left out of '{action}': {why}")

    def state(self) -> dict[str, Any]:
        return {"flower": True, **({SECURE: self.secure.state()} if self.secure else {})}

    def restore(self, state: Mapping[str, Any], theta: Theta) -> None:
        """To Flower a resumed run is a new one, in which no node remembers anything."""
        if self.secure and SECURE in state:
            self.secure.restore(state[SECURE] | {"registered": []})

    def close(self) -> None:
        pass
