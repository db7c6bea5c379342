"""What a node remembers from one message to the next.

In a deployment every message starts a fresh process; only Flower's `context.state` outlives it.
"""

from flwr.app import Array, ArrayRecord, RecordDict

from fedtiny.devices.link import Receiver
from fedtiny.federation.messages import Request
from fedtiny.federation.wire import NOTHING_KNOWN, decode_request, encode_request
from fedtiny.flower.node_spec import NodeSpec, key_of
from fedtiny.sparse.theta import Theta

SPEC, THETA = "fedtiny.spec", "fedtiny.theta"


class Memory:
    """A node's spec and the theta that it was sent last, kept in the state of its context."""

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def keep_spec(self, text: str) -> None:
        """Remember another run; what was held for the one before is of no use."""
        if self._read(SPEC) != text.encode():
            self._state.pop(THETA, None)
            self._write(SPEC, text.encode())

    def spec(self, key: str) -> NodeSpec | None:
        """The spec of that name, if it is held."""
        text = self._read(SPEC).decode()
        return NodeSpec.from_text(text) if text and key_of(text) == key else None

    def receiver(self, spec: NodeSpec) -> Receiver:
        """The device's end of the link, where it was left."""
        data = self._read(THETA)
        if not data:
            return Receiver()
        theta = decode_request(data, spec.device.param_spec).theta
        return Receiver(theta.mask, theta)

    def keep_theta(self, theta: Theta) -> None:
        """Remember a theta, as a request that carries nothing else."""
        holder = Request("held", "held", 0, (), theta)
        self._write(THETA, encode_request(holder, NOTHING_KNOWN))

    def _read(self, name: str) -> bytes:
        record = self._state.array_records.get(name)
        return record["data"].data if record is not None else b""

    def _write(self, name: str, data: bytes) -> None:
        array = Array(dtype="uint8", shape=(len(data),), stype="fedtiny.held.v1", data=data)
        self._state[name] = ArrayRecord({"data": array})
