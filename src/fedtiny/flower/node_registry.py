"""Waiting for nodes, letting them in, and which of them plays which device."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedtiny.errors import FedTinyError
from fedtiny.federation.transport import ABSENT, STRAGGLER, Traffic
from fedtiny.files import write_json
from fedtiny.flower.exchange import Exchange, failure
from fedtiny.flower.messages import FAILED, JOIN, Answer, Arrival, NodeSpec, Question
from fedtiny.flower.settings import FlowerSettings
from fedtiny.runs.folder import RunFolder

LATE = "it did not answer in time"
LOOK = 1.0  # seconds between two looks for nodes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Assignment:
    """A node that plays a device."""

    node: int
    name: str
    samples: int


class Assignments:
    """The devices of a run and the nodes that play them.

    A node keeps its device as long as the run lasts; another one may take the device over when
    the first is gone. `recalled` is who played what before the server was started anew,
    `shares` how many images each device has, where that is known.
    """

    def __init__(
        self,
        size: int,
        recalled: Mapping[int, Assignment] | None = None,
        shares: Sequence[int] = (),
    ) -> None:
        self.size = size
        self.recalled = dict(recalled or {})
        self.shares = shares
        self.assigned: dict[int, Assignment] = {}
        self.turned_away: dict[int, str] = {}

    def strangers(self, online: Iterable[int]) -> list[int]:
        """The nodes of these that have not said yet who they are; who was late may try again."""
        seated = {assignment.node for assignment in self.assigned.values()}
        refused = {node for node, why in self.turned_away.items() if why != LATE}
        return sorted(set(online) - seated - refused)

    def forgive(self, online: Iterable[int]) -> None:
        """Who was turned away and has left is a stranger when it comes back, perhaps mended."""
        self.turned_away = {k: why for k, why in self.turned_away.items() if k in set(online)}

    def present(self, online: Iterable[int]) -> dict[int, int]:
        """The devices whose node is there, and that node."""
        there = set(online)
        return {
            k: assignment.node
            for k, assignment in sorted(self.assigned.items())
            if assignment.node in there
        }

    def assign(self, node: int, arrival: Arrival, online: Iterable[int]) -> int:
        """Give a node the device it claims, or the one it had, or the first that is free."""
        taken = self.present(online)
        device = arrival.claim if arrival.claim is not None else self._free(node, taken)
        if device is None or device >= self.size:
            raise FedTinyError(f"the run has {self.size} devices, and each has its node")
        if taken.get(device, node) != node:
            raise FedTinyError(f"device {device} is played by {self.assigned[device].name} already")
        if self.shares and arrival.samples != self.shares[device]:
            raise FedTinyError(
                f"it says that it has {arrival.samples} images, but the part of device {device} "
                f"has {self.shares[device]}; give it the data set that the server has"
            )
        self.turned_away.pop(node, None)
        self.assigned[device] = Assignment(node, arrival.name, arrival.samples)
        return device

    def _free(self, node: int, taken: Mapping[int, int]) -> int | None:
        before = [k for k, assignment in self.recalled.items() if assignment.node == node]
        others = (k for k in range(self.size) if k not in {*self.assigned, *self.recalled})
        left = (k for k in range(self.size) if k not in taken)
        return next((k for k in (*before, *others, *left) if k not in taken), None)

    @property
    def samples(self) -> int:
        """Images of a device of mean size."""
        return sum(assignment.samples for assignment in self.assigned.values()) // max(
            1, len(self.assigned)
        )

    def name(self, device: int) -> str:
        """A device and its node, for people."""
        assignment = self.assigned.get(device)
        return f"device {device} ({assignment.name})" if assignment else f"device {device}"

    def plain(self) -> dict[str, Any]:
        """Who plays what, as plain JSON."""
        assigned = sorted((self.recalled | self.assigned).items())
        return {str(device): asdict(assignment) for device, assignment in assigned}


def recalled(plain: Mapping[str, Any]) -> dict[int, Assignment]:
    """What `plain` of a assignments said."""
    return {int(device): Assignment(**assignment) for device, assignment in plain.items()}


class NodeRegistry:
    """Gives every new node the spec of the run and a device to play."""

    def __init__(
        self,
        grid: Grid,
        spec: NodeSpec,
        assignments: Assignments,
        settings: FlowerSettings,
        folder: RunFolder,
        say: Say,
    ) -> None:
        self.grid = grid
        self.spec = spec
        self.assignments = assignments
        self.settings = settings
        self.folder = folder
        self.say = say
        self.traffic = Traffic()
        self._invitations: list[Exchange] = []
        self._noted: dict[str, Any] = {}

    def present(self, expected: int, least: int) -> dict[int, int]:
        """The devices that are there and their nodes, new ones let in.

        As long as fewer than expected are there this waits; when the time is up, `least` will do.
        """
        until = time.monotonic() + self.settings.wait
        there = self._look()
        if len(there) < expected:
            self.say(f"waiting for {expected} nodes; {len(there)} are here")
        while len(there) < expected and time.monotonic() < until:
            time.sleep(LOOK)
            there = self._look()
        if len(there) < least:
            raise FedTinyError(self._too_few(len(there), least))
        return there

    def note(self) -> None:
        """Write down who plays what, whenever that has changed."""
        noted = {
            "devices": self.assignments.plain(),
            "turned_away": {str(node): why for node, why in self.assignments.turned_away.items()},
            "bytes_joining": self.traffic.down,
        }
        if noted != self._noted:
            write_json(self.folder.nodes, noted)
            self._noted = noted

    def _look(self) -> dict[int, int]:
        online = list(self.grid.get_node_ids())
        self.assignments.forgive(online)
        if len(self.assignments.present(online)) < self.assignments.size:
            self._invite(online)
        self._welcome(online)
        return self.assignments.present(online)

    def _invite(self, online: list[int]) -> None:
        """Ask strangers to join; nobody waits for them, who answers is let in at a later look."""
        invited = {node for exchange in self._invitations for node in exchange.awaited}
        strangers = [node for node in self.assignments.strangers(online) if node not in invited]
        if strangers:
            exchange = Exchange(self.grid, self.settings.wait)
            records = Question(self.spec.key, 0, b"", self.spec.text).records()
            exchange.send(JOIN, dict.fromkeys(strangers, records))
            self._invitations.append(exchange)
            self.traffic += Traffic(down=len(exchange.awaited) * len(self.spec.text.encode()))

    def _welcome(self, online: list[int]) -> None:
        """Let in who has answered by now, in the order of nodes."""
        arrivals: dict[int, Arrival | str] = {}
        for exchange in list(self._invitations):
            arrivals |= {node: self._arrival(reply) for node, reply in exchange.arrived()}
            if exchange.is_over:
                arrivals |= dict.fromkeys(exchange.awaited, LATE)
                self._invitations.remove(exchange)
        for node, arrival in sorted(arrivals.items()):
            self._assign(node, arrival, online)

    def _arrival(self, reply: Message) -> Arrival | str:
        """Who has come, or why that cannot be told."""
        if reply.has_error():
            why = failure(reply.error)
            return LATE if why in (ABSENT, STRAGGLER) else why
        try:
            answer = Answer.read(reply.content, with_reply=False)
            return answer.text if answer.status == FAILED else Arrival.read(reply.content)
        except FedTinyError as error:
            return str(error)

    def _assign(self, node: int, arrival: Arrival | str, online: list[int]) -> None:
        try:
            if isinstance(arrival, str):
                raise FedTinyError(arrival)
            most = self.spec.config.robustness.max_samples  # it is the node's weight in every mean
            if arrival.samples > most:
                raise FedTinyError(
                    f"it says that it has {arrival.samples} images, more than the {most} that "
                    "robustness.max_samples allows"
                )
            device = self.assignments.assign(node, arrival, online)
        except FedTinyError as error:
            self.assignments.turned_away[node] = str(error)
            self.say(f"node {node} takes no part: {error}")
        else:
            self.say(f"{self.assignments.name(device)} is here with {arrival.samples} images")

    def _too_few(self, count: int, least: int) -> str:
        away = "; ".join(self.assignments.turned_away.values())
        begun = " with flower.resume=true" if self.folder.config.exists() else ""
        return (
            f"after {self.settings.wait:g} s {count} nodes are here, fewer than the {least} that "
            f"fleet.min_replies asks for{f' ({away})' if away else ''}; start more nodes, then "
            f"run again{begun}"
        )
