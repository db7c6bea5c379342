"""Which node plays which device."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedtiny.errors import FedTinyError
from fedtiny.flower.messages import Arrival

STRAGGLER = "it did not answer in time"


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
        refused = {node for node, why in self.turned_away.items() if why != STRAGGLER}
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
