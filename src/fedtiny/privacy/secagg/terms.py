"""What all parties to an exchange must agree on, and the one form of their messages."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fedtiny.errors import SecureAggregationError
from fedtiny.privacy.secagg import graph
from fedtiny.privacy.secagg.graph import Graph

KEYS, TERMS, MASKED, REVEAL, SEEDS, UNMASK, SHARES = range(7)
"""The kinds of messages, in the order of an exchange."""
DIGEST_BYTES = 32
_HEAD = (
    "<BQQHII"  # kind, number of the exchange, device, bytes an entry, entries, bytes of the body
)


@dataclass(frozen=True)
class Terms:
    """The public terms of one exchange: every mask and share is bound to all of them.

    Devices that were told different terms have masks that do not cancel.
    """

    run: bytes
    """Sixteen bytes that name the run; one that is continued has another name."""
    number: int
    """Rises with every exchange of a run; no device takes part in one that it has passed."""
    round: int
    request: int
    """The id of the request that is answered."""
    participants: tuple[int, ...]
    neighbors: int
    """Most neighbors of a device."""
    threshold: float
    """Of its neighbors a device needs more than this share."""
    scales: bytes = b""
    """How values become numbers of the ring (`quantize.py`), whatever that is."""
    context: bytes = bytes(DIGEST_BYTES)
    """The hash of all that a device was told beside the terms: the run's settings, the mechanism,
    the whole request. Every party computes it from what it received; it is never sent."""

    @cached_property
    def digest(self) -> bytes:
        """Thirty-two bytes that stand for the terms."""
        numbered = struct.pack("<16sQ", self.run, self.number)
        return hashlib.sha256(b"fedtiny terms" + numbered + self.question).digest()

    @cached_property
    def question(self) -> bytes:
        """Thirty-two bytes that stand for all that is asked, and of whom.

        They are the same if a run that is continued asks it again, in whichever session.
        """
        count = len(self.participants)
        numbers = (self.round, self.request, self.neighbors, self.threshold, count)
        asked = struct.pack(f"<IQIdI{count}Q", *numbers, *self.participants)
        told = b"fedtiny question" + self.context + asked + self.scales
        return hashlib.sha256(told).digest()

    @cached_property
    def graph(self) -> Graph:
        """Who shares masks with whom; it follows from the request and who takes part in it."""
        return graph.draw(self.participants, self.degree, self._seed)

    @property
    def _seed(self) -> bytes:
        """What names the graph."""
        count = len(self.participants)
        return struct.pack(f"<QI{count}Q", self.request, self.round, *self.participants)

    @cached_property
    def degree(self) -> int:
        """How many neighbors each device has."""
        return graph.degree(len(self.participants), self.neighbors)

    @cached_property
    def needed(self) -> int:
        """How many of its neighbors a device needs."""
        return graph.threshold(self.degree, self.threshold)

    def record(self) -> dict[str, Any]:
        """Who shares masks with whom, for a reader: each with its nearest on the ring."""
        ring = graph.ring(self.participants, self._seed)
        return {"ring": ring, "neighbors": self.degree, "needed": self.needed}

    def message(self) -> "Message":
        """What devices do not know yet of the terms: who takes part, and the scales."""
        return Message(TERMS, self.number, 0, dict.fromkeys(self.participants, b""), self.scales)

    def told(self, message: "Message") -> "Terms":
        """The terms as a device reads them, which knows the others from the run and the request."""
        participants, scales = tuple(message.entries), bytes(message.body)
        return replace(self, number=message.number, participants=participants, scales=scales)

    def to_plain(self) -> dict[str, Any]:
        """As plain JSON, but for the run."""
        names = ("number", "round", "request", "participants", "neighbors", "threshold")
        told = {"scales": self.scales.hex(), "context": self.context.hex()}
        return {name: getattr(self, name) for name in names} | told

    @classmethod
    def from_plain(cls, run: bytes, plain: Mapping[str, Any]) -> "Terms":
        """The way back."""
        names = ("number", "round", "request", "neighbors", "threshold")
        told = {name: plain[name] for name in names}
        told |= {name: bytes.fromhex(plain[name]) for name in ("scales", "context")}
        return cls(run, participants=tuple(plain["participants"]), **told)

    def check(self) -> None:
        """Refuse terms under which a sum would not hide one device from the others."""
        if sorted(set(self.participants)) != list(self.participants):
            raise SecureAggregationError("the participants are not in order, or one is there twice")
        if len(self.participants) < graph.FEWEST:
            raise SecureAggregationError(
                f"{len(self.participants)} devices take part, and a sum of fewer than "
                f"{graph.FEWEST} hides nobody"
            )
        if not 0.5 <= self.threshold < 1 or self.neighbors < graph.FEWEST - 1:
            raise SecureAggregationError(
                f"{self.neighbors} neighbors with a threshold of {self.threshold:g} do not hide a "
                "device from a server that tells them different things"
            )


@dataclass(frozen=True)
class Message:
    """One message of any stage: a few bytes for, or about, each of some devices, and a body."""

    kind: int
    number: int
    device: int
    """Who sends it, or whom it is for."""
    entries: Mapping[int, bytes] = field(default_factory=dict)
    body: bytes | memoryview = b""

    @property
    def size(self) -> int:
        """Number of bytes on the wire."""
        each = 8 + self._width
        return struct.calcsize(_HEAD) + each * len(self.entries) + len(self.body)

    @property
    def _width(self) -> int:
        return len(next(iter(self.entries.values()), b""))

    def to_bytes(self) -> bytes:
        """As it travels."""
        width = self._width
        numbers = (self.kind, self.number, self.device, width, len(self.entries), len(self.body))
        entries = (struct.pack("<Q", peer) + own for peer, own in self.entries.items())
        return b"".join([struct.pack(_HEAD, *numbers), *entries, self.body])

    @classmethod
    def from_bytes(cls, data: bytes, kind: int) -> "Message":
        """The message of the kind that is expected now; whatever else comes is refused."""
        head = struct.calcsize(_HEAD)
        if len(data) < head:
            raise SecureAggregationError("a message of secure aggregation is too short")
        found, number, device, width, count, length = struct.unpack_from(_HEAD, data)
        if found != kind or len(data) != head + (8 + width) * count + length:
            raise SecureAggregationError("a message of secure aggregation is not what it claims")
        entries = {}
        for start in range(head, head + (8 + width) * count, 8 + width):
            (peer,) = struct.unpack_from("<Q", data, start)
            entries[peer] = data[start + 8 : start + 8 + width]
        if len(entries) != count:
            raise SecureAggregationError("a message of secure aggregation names a device twice")
        return cls(kind, number, device, entries, memoryview(data)[len(data) - length :])
