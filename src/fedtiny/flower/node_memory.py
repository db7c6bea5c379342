"""What a node remembers from one message to the next."""

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import RecordDict

from fedtiny.devices.node import Receiver
from fedtiny.federation import wire
from fedtiny.federation.messages import Request
from fedtiny.flower import messages
from fedtiny.flower.node_spec import NodeSpec, key_of
from fedtiny.sparse.theta import Theta

SPEC, THETA = "fedtiny.spec", "fedtiny.theta"  # in the state of a context
SECURE = "fedtiny.secagg"


class Memory:
    """What a node keeps in the state of its context: the spec of a run, the theta that it was sent
    last, and where it stands in secure aggregation.

    In a deployment every message starts a fresh process; only Flower's `context.state` outlives it.
    """

    def __init__(self, state: RecordDict) -> None:
        self._state = state

    def keep_spec(self, text: str) -> None:
        """Remember another run; what was held for the one before is of no use."""
        if self._read(SPEC) != text.encode():
            self._state.pop(THETA, None)
            self._state[SPEC] = messages.blob(text.encode())

    def spec(self, key: str) -> NodeSpec | None:
        """The spec of that name, if it is held."""
        text = self._read(SPEC).decode()
        return NodeSpec.from_text(text) if text and key_of(text) == key else None

    def receiver(self, spec: NodeSpec) -> Receiver:
        """The device's end of the link, where it was left."""
        data = self._read(THETA)
        if not data:
            return Receiver()
        theta = wire.decode_request(data, spec.device.param_spec).theta
        return Receiver(theta.mask, theta)

    def keep_theta(self, theta: Theta) -> None:
        """Remember a theta, as a request that carries nothing else."""
        holder = Request("held", "held", 0, (), theta)
        self._state[THETA] = messages.blob(wire.encode_request(holder, wire.NOTHING_KNOWN))

    def secure(self) -> dict[str, Any]:
        """Where the node stands in secure aggregation; empty if it takes no part."""
        found: dict[str, Any] = json.loads(self._read(SECURE) or b"{}")
        return found

    def keep_secure(self, held: Mapping[str, Any]) -> None:
        """Remember that; what was there before is gone."""
        self._state[SECURE] = messages.blob(json.dumps(held).encode())

    def _read(self, name: str) -> bytes:
        record = self._state.array_records.get(name)
        return record["data"].data if record is not None else b""
