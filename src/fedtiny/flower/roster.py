"""Which node plays which device."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedtiny.errors import FedTinyError
from fedtiny.flower.messages import Arrival

LATE = "it did not answer in time"


@dataclass(frozen=True)
class Seat:
    """A node that plays a device."""

    node: int
    name: str
    samples: int


class Roster:
    """The devices of a run and the nodes that play them.

    A node keeps its device as long as the run lasts; another one may take the device over when
    the first is gone. `recalled` is who played what before the server was started anew,
    `shares` how many images each device has, where that is known.
    """

    def __init__(
        self,
        size: int,
        recalled: Mapping[int, Seat] | None = None,
        shares: Sequence[int] = (),
    ) -> None:
        self.size = size
        self.recalled = dict(recalled or {})
        self.shares = shares
        self.seats: dict[int, Seat] = {}
        self.turned_away: dict[int, str] = {}

    def strangers(self, online: Iterable[int]) -> list[int]:
        """The nodes of these that have not said yet who they are; who was late may try again."""
        seated = {seat.node for seat in self.seats.values()}
        refused = {node for node, why in self.turned_away.items() if why != LATE}
        return sorted(set(online) - seated - refused)

    def forgive(self, online: Iterable[int]) -> None:
        """Who was turned away and has left is a stranger when it comes back, perhaps mended."""
        self.turned_away = {k: why for k, why in self.turned_away.items() if k in set(online)}

    def present(self, online: Iterable[int]) -> dict[int, int]:
        """The devices whose node is there, and that node."""
        there = set(online)
        return {k: seat.node for k, seat in sorted(self.seats.items()) if seat.node in there}

    def seat(self, node: int, arrival: Arrival, online: Iterable[int]) -> int:
        """Give a node the device it claims, or the one it had, or the first that is free."""
        taken = self.present(online)
        device = arrival.claim if arrival.claim is not None else self._free(node, taken)
        if device is None or device >= self.size:
            raise FedTinyError(f"the run has {self.size} devices, and each has its node")
        if taken.get(device, node) != node:
            raise FedTinyError(f"device {device} is played by {self.seats[device].name} already")
        if self.shares and arrival.samples != self.shares[device]:
            raise FedTinyError(
                f"it says that it has {arrival.samples} images, but the part of device {device} "
                f"has {self.shares[device]}; give it the data set that the server has"
            )
        self.turned_away.pop(node, None)
        self.seats[device] = Seat(node, arrival.name, arrival.samples)
        return device

    def _free(self, node: int, taken: Mapping[int, int]) -> int | None:
        before = [k for k, seat in self.recalled.items() if seat.node == node]
        others = (k for k in range(self.size) if k not in {*self.seats, *self.recalled})
        left = (k for k in range(self.size) if k not in taken)
        return next((k for k in (*before, *others, *left) if k not in taken), None)

    @property
    def samples(self) -> int:
        """Images of a device of mean size."""
        return sum(seat.samples for seat in self.seats.values()) // max(1, len(self.seats))

    def name(self, device: int) -> str:
        """A device and its node, for people."""
        seat = self.seats.get(device)
        return f"device {device} ({seat.name})" if seat else f"device {device}"

    def plain(self) -> dict[str, Any]:
        """Who plays what, as plain JSON."""
        seats = sorted((self.recalled | self.seats).items())
        return {str(device): asdict(seat) for device, seat in seats}


def recalled(plain: Mapping[str, Any]) -> dict[int, Seat]:
    """What `plain` of a roster said."""
    return {int(device): Seat(**seat) for device, seat in plain.items()}
