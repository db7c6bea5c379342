"""What the server and a node say to each other, as Flower's records and back.

A question names the spec it belongs to and the device that the node plays, and holds a request in
the wire format; it brings the spec itself to a node that lacks it. An answer holds a reply in the
wire format, or says what the node lacks or why it failed. Whatever a node sends is read as bytes
that may lie.
"""

import json
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedtiny.errors import WireError
from fedtiny.federation.messages import Request
from fedtiny.federation.verbs import KNOWN
from fedtiny.privacy.mechanism import Mechanism
from fedtiny.privacy.secagg.ciphers import KEY_BYTES, SIGNATURE_BYTES

STYPE = "fedtiny.wire.v1"
JOIN = "query.join"
TRAIN = "train"
REVEAL, UNMASK = "query.reveal", "query.unmask"  # the stages of secure aggregation after a reply
QUERIES = tuple(name for name, verb in KNOWN.items() if verb.phase == "select")

DONE, LACKS, FAILED = "done", "lacks", "failed"
SPEC, THETA = "kit", "theta"  # on the wire as ever, so that any version can refuse another
MAX_TEXT = 300
MAX_NAME = 60


@dataclass(frozen=True)
class SecurePart:
    """What a node needs to mask its reply: the terms of an exchange, and its neighbors' keys."""

    terms: bytes
    keys: bytes
    mechanism: Mechanism | None = None
    """How it clips, under differential privacy; the server's seed stays there."""

    @property
    def size(self) -> int:
        """Its bytes, as the simulator counts them."""
        return len(self.terms) + len(self.keys)

    def add_to(self, records: RecordDict) -> None:
        """Put it beside a request."""
        records["terms"], records["keys"] = blob(self.terms), blob(self.keys)
        if self.mechanism:
            records["mechanism"] = ConfigRecord({"json": json.dumps(self.mechanism.to_plain())})

    @classmethod
    def read(cls, records: RecordDict) -> "SecurePart":
        """What a node was sent."""
        mechanism = None
        if "mechanism" in records:
            try:
                mechanism = Mechanism.from_plain(json.loads(_text(records, "mechanism", "json")))
            except (ValueError, TypeError) as error:
                raise WireError("a message has no mechanism that this node knows") from error
        return cls(_bytes(records, "terms"), _bytes(records, "keys"), mechanism)


@dataclass(frozen=True)
class Question:
    """What a node is asked; `spec` is empty if the node should have it."""

    spec_key: str
    device: int
    request: bytes
    spec: str = ""
    secure: SecurePart | None = None

    def records(self) -> RecordDict:
        """As Flower carries it."""
        found = RecordDict({"order": ConfigRecord({SPEC: self.spec_key, "device": self.device})})
        if self.spec:
            found[SPEC] = blob(self.spec.encode())
        if self.request:
            found["request"] = blob(self.request)
        if self.secure:
            self.secure.add_to(found)
        return found

    @classmethod
    def read(cls, records: RecordDict) -> "Question":
        """What a node was sent."""
        order = records.config_records["order"]
        spec = _bytes(records, SPEC) if SPEC in records else b""
        request = _bytes(records, "request") if "request" in records else b""
        secure = SecurePart.read(records) if "terms" in records else None
        return cls(str(order[SPEC]), _integer(order, "device"), request, spec.decode(), secure)


@dataclass(frozen=True)
class Answer:
    """What a node says: a reply, or in words what it lacks or why it failed."""

    status: str
    text: str = ""
    reply: bytes = b""
    name: str = ""
    """The node's own, if it cannot join."""

    def records(self) -> RecordDict:
        """As Flower carries it."""
        text = self.text[:MAX_TEXT]
        own = ConfigRecord({"status": self.status, "words": text, "name": self.name})
        found = RecordDict({"answer": own})
        if self.reply:
            found["reply"] = blob(self.reply)
        return found

    @classmethod
    def read(cls, records: RecordDict, with_reply: bool = True) -> "Answer":
        """What a node sent, if it is an answer."""
        status, text = (_text(records, "answer", name) for name in ("status", "words"))
        if status not in (DONE, LACKS, FAILED):
            raise WireError(f"a node answered with the unknown status {ascii(status)[:30]}")
        reply = _bytes(records, "reply") if status == DONE and with_reply else b""
        name = records.config_records["answer"].get("name", "")
        return cls(status, told(text), reply, told(str(name))[:MAX_NAME])


@dataclass(frozen=True)
class Arrival:
    """What a node says of itself when it joins; without a claim it plays any free device."""

    name: str
    samples: int
    claim: int | None
    key: bytes = b""
    """Under secure aggregation its key, signed, as peers are shown it."""

    def records(self) -> RecordDict:
        """As Flower carries it."""
        claim = -1 if self.claim is None else self.claim
        own = ConfigRecord({"name": self.name, "samples": self.samples, "claim": claim})
        if self.key:
            own["key"] = self.key
        return RecordDict({"answer": ConfigRecord({"status": DONE, "words": ""}), "arrival": own})

    @classmethod
    def read(cls, records: RecordDict) -> "Arrival":
        """What a node sent, if it says who it is."""
        name = _text(records, "arrival", "name")
        own = records.config_records["arrival"]
        samples, claim = _integer(own, "samples"), _integer(own, "claim")
        if not name.isprintable() or not 0 < samples < 2**40:
            raise WireError(f"a node says that it is {ascii(name)[:30]} with {samples} samples")
        key = own.get("key", b"")
        if not isinstance(key, bytes) or len(key) not in (0, KEY_BYTES + SIGNATURE_BYTES):
            raise WireError("a node has sent a key that is none")
        return cls(name[:MAX_NAME], samples, claim if claim >= 0 else None, key)


def told(text: str) -> str:
    """Words of a node as they can be shown: one line, not too long, nothing unprintable."""
    line = text.strip().rpartition("\n")[2]
    return "".join(c if c.isprintable() else "?" for c in line)[:MAX_TEXT]


def kind(request: Request) -> str:
    """The message type of a request: the phase of a run that its first verb belongs to."""
    if not request.program:
        return TRAIN
    first = request.program[0]
    return f"query.{first.name}" if first.phase == "select" else first.phase


def blob(data: bytes) -> ArrayRecord:
    """Bytes as Flower carries them."""
    return ArrayRecord({"data": Array(dtype="uint8", shape=(len(data),), stype=STYPE, data=data)})


def _bytes(records: RecordDict, name: str) -> bytes:
    record = records.array_records.get(name)
    array = record.get("data") if record is not None else None
    if array is None or array.stype != STYPE:
        raise WireError(f"a message lacks its {name}")
    return array.data


def _text(records: RecordDict, record: str, name: str) -> str:
    found = records.config_records.get(record)
    value = found.get(name) if found is not None else None
    if not isinstance(value, str):
        raise WireError(f"a message lacks the {name} of its {record}")
    return value


def _integer(record: Any, name: str) -> int:
    value = record.get(name)
    if type(value) is not int:
        raise WireError(f"a message lacks the number '{name}'")
    return value
