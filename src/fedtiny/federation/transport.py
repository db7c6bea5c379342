"""The one transport between the server and its devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.messages import Request
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

ABSENT = "out of reach"
STRAGGLER = "too late"


@dataclass(frozen=True)
class Traffic:
    """Bytes that crossed the transport, over all devices."""

    down: int = 0
    up: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(self.down + other.down, self.up + other.up)


@dataclass(frozen=True)
class Outcome:
    """What came of a question: the replies, averaged in device order, and who did not answer.

    Means are weighted by the samples of the devices that answered, so a missing device's share
    falls to the others.
    """

    answered: tuple[int, ...]
    failed: Mapping[int, str] = field(default_factory=dict)
    theta: Theta | None = None
    gradients: Mapping[str, SparseVector] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    by_device: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    traffic: Traffic = Traffic()


class Transport(Protocol):
    """Asks devices, and gives their averaged replies or why there are none.

    The reference simulator, a GPU simulator and a real network stand behind it, so a method
    runs on all of them unchanged.
    """

    @property
    def devices(self) -> Sequence[int]:
        """The devices that can be asked."""

    def present(self) -> Sequence[int]:
        """Those of them that are there now, in order: a round that asks a few draws from these."""

    def ask(self, devices: Sequence[int], request: Request, reducer: str) -> Outcome:
        """Put one question to these devices and average what they answer."""

    def state(self) -> dict[str, Any]:
        """What a resumed run needs of the transport, as plain JSON."""

    def restore(self, state: Mapping[str, Any], theta: Theta) -> None:
        """Take up a state saved before, when the server held this theta."""

    def close(self) -> None:
        """Nothing more will be asked."""
