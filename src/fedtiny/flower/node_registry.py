"""Waiting for nodes, letting them in, and which of them plays which device."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedtiny.errors import FedTinyError, plural
from fedtiny.federation.transport import ABSENT, STRAGGLER, Traffic
from fedtiny.files import write_json
from fedtiny.flower import signing_keys
from fedtiny.flower.exchange import Exchange, failure
from fedtiny.flower.messages import FAILED, JOIN, Answer, Arrival, Question
from fedtiny.flower.node_spec import NodeSpec
from fedtiny.flower.secure_server import check_key
from fedtiny.flower.settings import FlowerSettings
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reading import assignments

LATE = "it did not answer in time"
LOOK = 1.0  # seconds between two looks for nodes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Assignment:
    """A node that plays a device."""

    node: int
    name: str
    samples: int


class DeviceKeptError(FedTinyError):
    """A device whose node is away, and that is kept for it."""

    def __init__(self, device: int, owner: Assignment) -> None:
        super().__init__(f"device {device} belongs to {owner.name}, which is away; it is kept")


class NodeRegistry:
    """Gives every new node the spec of the run and a device to play.

    A device belongs to its node, which Flower knows by its key, as long as the run lasts, also when
    the server is started anew: who played what is recalled from the run folder. While the node is
    away no other one takes the device, unless the run cannot go on without (`present`), the whole
    fleet is a new one, or the settings say that devices are free; then the log tells. `shares` is
    how many images each device has, where that is known.
    """

    def __init__(
        self,
        grid: Grid,
        spec: NodeSpec,
        settings: FlowerSettings,
        folder: RunFolder,
        say: Say,
        shares: Sequence[int] = (),
    ) -> None:
        self.grid = grid
        self.spec = spec
        self.settings = settings
        self.folder = folder
        self.say = say
        self.shares = shares
        self.size = spec.config.fleet.devices
        self.assigned: dict[int, Assignment] = {}
        self.keys: dict[int, bytes] = {}
        """Under secure aggregation the signed key of each device; without one it takes no part."""
        self._list = signing_keys.read_list(settings.secagg_keys) if settings.secagg_keys else None
        self.turned_away: dict[int, str] = {}
        self._recalled = {device: Assignment(**own) for device, own in assignments(folder).items()}
        self._waiting: dict[int, Arrival] = {}
        self.traffic = Traffic()
        self._invitations: list[Exchange] = []
        self._noted: dict[str, Any] = {}

    def present(self, expected: int, least: int) -> dict[int, int]:
        """The devices that are there and their nodes, new ones let in.

        As long as fewer than expected are there this waits; when the time is up, `least` will do,
        and if there are fewer, devices are taken from nodes that are away.
        """
        until = time.monotonic() + self.settings.wait
        there = self._look()
        if len(there) < expected:
            self.say(f"waiting for {plural(expected, 'node')}; here: {len(there)}")
        while len(there) < expected and time.monotonic() < until:
            time.sleep(LOOK)
            there = self._look()
        if len(there) < least and self._waiting:
            there = self._give_away(list(self.grid.get_node_ids()))
        if len(there) < least:
            raise FedTinyError(self._too_few(len(there), least))
        return there

    def note(self) -> None:
        """Write down who plays what, whenever that has changed."""
        assigned = sorted((self._recalled | self.assigned).items())
        noted = {
            "devices": {str(device): asdict(assignment) for device, assignment in assigned},
            "turned_away": {str(node): why for node, why in self.turned_away.items()},
            "bytes_joining": self.traffic.down,
        }
        if noted != self._noted:
            write_json(self.folder.nodes, noted)
            self._noted = noted

    def _look(self) -> dict[int, int]:
        online = list(self.grid.get_node_ids())
        # Who was turned away and has left is a stranger when it comes back, perhaps mended.
        self.turned_away = {k: why for k, why in self.turned_away.items() if k in set(online)}
        self._waiting = {k: arrival for k, arrival in self._waiting.items() if k in set(online)}
        if len(self._seated(online)) < self.size:
            self._invite(online)
        self._welcome(online)
        if len(self._waiting) >= self.size and not self._seated(online):
            return self._give_away(online)
        return self._seated(online)

    def _give_away(self, online: list[int]) -> dict[int, int]:
        """Let those who wait play devices whose nodes are away."""
        for node, arrival in sorted(self._waiting.items()):
            self._assign(node, arrival, online, keep=False)
        return self._seated(online)

    def _invite(self, online: list[int]) -> None:
        """Ask strangers and the late to join; nobody waits, they are let in at a later look."""
        invited = {node for exchange in self._invitations for node in exchange.awaited}
        seated = set(self._seated(online).values())
        refused = {node for node, why in self.turned_away.items() if why != LATE}
        strangers = sorted(set(online) - seated - refused - invited)
        if strangers:
            exchange = Exchange(self.grid, self.settings.wait)
            records = Question(self.spec.key, 0, b"", self.spec.text).records()
            exchange.send(JOIN, dict.fromkeys(strangers, records))
            self._invitations.append(exchange)
            self.traffic += Traffic(down=len(exchange.awaited) * len(self.spec.text.encode()))

    def _welcome(self, online: list[int]) -> None:
        """Let in who has answered by now, in the order of nodes."""
        arrivals: dict[int, Arrival | Answer] = {}
        for exchange in list(self._invitations):
            arrivals |= {node: self._arrival(reply) for node, reply in exchange.arrived()}
            if exchange.is_over:
                arrivals |= dict.fromkeys(exchange.awaited, Answer(FAILED, LATE))
                self._invitations.remove(exchange)
        for node, arrival in sorted(arrivals.items()):
            self._assign(node, arrival, online)

    def _arrival(self, reply: Message) -> Arrival | Answer:
        """Who has come, or why it cannot join."""
        if reply.has_error():
            why = failure(reply.error)
            return Answer(FAILED, LATE if why in (ABSENT, STRAGGLER) else why)
        try:
            answer = Answer.read(reply.content, with_reply=False)
            return answer if answer.status == FAILED else Arrival.read(reply.content)
        except FedTinyError as error:
            return Answer(FAILED, str(error))

    def _assign(
        self, node: int, arrival: Arrival | Answer, online: list[int], keep: bool = True
    ) -> None:
        self._waiting.pop(node, None)
        try:
            if isinstance(arrival, Answer):
                raise FedTinyError(arrival.text)
            most = self.spec.config.robustness.max_samples  # it is the node's weight in every mean
            if arrival.samples > most:
                raise FedTinyError(
                    f"it says that it has {arrival.samples} samples, more than the {most} that "
                    "robustness.max_samples allows"
                )
            if self.spec.session:
                check_key(arrival, self.spec.session, self._list)
            device = self._device(node, arrival, online, keep and not self.settings.reassign)
            self.keys[device] = arrival.key
        except FedTinyError as error:
            if isinstance(error, DeviceKeptError) and isinstance(arrival, Arrival):
                self._waiting[node] = arrival
            number = f"node {node}"
            name = arrival.name or number
            self.turned_away[node] = str(error) if name == number else f"{name}: {error}"
            self.say(f"{name} takes no part: {error}")
        else:
            self.say(f"{self.name(device)} is here with {plural(arrival.samples, 'sample')}")

    def _too_few(self, count: int, least: int) -> str:
        away = "; ".join(self.turned_away.values())
        begun = " with flower.resume=true" if self.folder.config.exists() else ""
        return (
            f"after {self.settings.wait:g} s {plural(count, 'node')} came, fewer than the {least} "
            f"that fleet.min_replies asks for{f' ({away})' if away else ''}; start more nodes, "
            f"then run again{begun}"
        )

    def _seated(self, online: Iterable[int]) -> dict[int, int]:
        """The devices whose node is there, with its key if it needs one, and that node."""
        there, assigned = set(online), sorted(self.assigned.items())
        return {
            device: own.node
            for device, own in assigned
            if own.node in there and (device in self.keys or not self.spec.session)
        }

    def _device(self, node: int, arrival: Arrival, online: Iterable[int], keep: bool) -> int:
        """Give a node the device it claims, or the one it had, or the first that is free."""
        taken, owners = self._seated(online), self._recalled | self.assigned
        device = arrival.claim if arrival.claim is not None else self._free(node, taken)
        if device is None or device >= self.size:
            raise FedTinyError(f"the run has {self.size} devices, and each has its node")
        if taken.get(device, node) != node:
            raise FedTinyError(f"device {device} is played by {self.assigned[device].name} already")
        if self.shares and arrival.samples != self.shares[device]:
            raise FedTinyError(
                f"it says that it has {arrival.samples} samples, but the part of device {device} "
                f"has {self.shares[device]}; give it the data set that the server has"
            )
        owner = owners.get(device)
        if owner is not None and owner.node != node:
            if keep:
                raise DeviceKeptError(device, owner)
            self.say(
                f"device {device} of {owner.name} (node {owner.node}), which is away, is given to "
                f"{arrival.name} (node {node})"
            )
        self.turned_away.pop(node, None)
        self.assigned[device] = Assignment(node, arrival.name, arrival.samples)
        return device

    def _free(self, node: int, taken: Mapping[int, int]) -> int | None:
        before = [k for k, assignment in self._recalled.items() if assignment.node == node]
        others = (k for k in range(self.size) if k not in {*self.assigned, *self._recalled})
        left = (k for k in range(self.size) if k not in taken)
        return next((k for k in (*before, *others, *left) if k not in taken), None)

    @property
    def samples(self) -> int:
        """Images of a device of mean size."""
        every = [assignment.samples for assignment in self.assigned.values()]
        return sum(every) // max(1, len(every))

    def name(self, device: int) -> str:
        """A device and its node, for people."""
        assignment = self.assigned.get(device)
        return f"device {device} ({assignment.name})" if assignment else f"device {device}"
