"""What a process and a child that does jobs for it say to each other, over any pipe.

A job is the device's number (u32) and a request in the wire format. An outcome is a byte and what
it announces: a reply in the wire format, a failure that a user can mend, or a traceback.
"""

import contextlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Engine
from fedtiny.devices.link import Receiver
from fedtiny.devices.node import answer
from fedtiny.errors import FedTinyError, ReplyError, WireError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.wire import (
    NOTHING_KNOWN,
    Known,
    decode_reply,
    encode_reply,
    encode_request,
)
from fedtiny.models.param_spec import ParamSpec

DONE, FAILED, BROKEN = b"\0", b"\1", b"\2"
GONE = (EOFError, BrokenPipeError, ConnectionResetError)


class Pipe(Protocol):
    """Carries whole messages between two processes."""

    def send_bytes(self, buf: bytes, /) -> None:
        """Send a message; an OSError where the other end is gone."""

    def recv_bytes(self) -> bytes:
        """The next message; an EOFError or OSError where the other end is gone."""

    def close(self) -> None:
        """No more messages either way."""


class WorkerDied(Exception):  # noqa: N818
    """The child is gone."""


class WorkerConnection:
    """The parent's side. It knows what the child holds already."""

    def __init__(self, pipe: Pipe, param_spec: ParamSpec) -> None:
        self.pipe = pipe
        self.param_spec = param_spec
        self.known = NOTHING_KNOWN

    def ask(self, device: int, request: Request) -> None:
        """Give the child a job."""
        self.tell(device.to_bytes(4, "little") + encode_request(request, self.known))
        self.known = Known.of(request.theta)

    def reply(self, request: Request) -> Reply | FedTinyError:
        """What came of the job that the child was given last."""
        found = self.outcome()
        if isinstance(found, FedTinyError):
            return found
        try:
            return decode_reply(found, self.param_spec, request.theta.mask)
        except WireError as error:
            return ReplyError(str(error))

    def tell(self, message: bytes) -> None:
        """Send the child a message."""
        try:
            self.pipe.send_bytes(message)
        except OSError as error:
            raise WorkerDied from error

    def outcome(self) -> bytes | FedTinyError:
        """What the child has done, or what kept it from it."""
        try:
            answered = self.pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise WorkerDied from error
        if answered[:1] == BROKEN:
            raise RuntimeError(f"a worker process failed:\n{answered[1:].decode()}")
        if answered[:1] == FAILED:
            return FedTinyError(answered[1:].decode())
        return answered[1:]


def serve(
    pipe: Pipe, engine: Engine, param_spec: ParamSpec, shards: Sequence[DeviceData], seed: int
) -> None:
    """A child's life: do jobs until the parent goes away."""
    child = _Child(engine, param_spec, {shard.device: shard for shard in shards}, seed)
    with contextlib.suppress(*GONE):
        while True:
            pipe.send_bytes(child.outcome(pipe.recv_bytes()))


@dataclass
class _Child:
    """The child's side."""

    engine: Engine
    param_spec: ParamSpec
    shards: Mapping[int, DeviceData]
    seed: int
    link: Receiver = field(default_factory=Receiver)

    def outcome(self, task: bytes) -> bytes:
        try:
            return DONE + self._reply(self.shards[int.from_bytes(task[:4], "little")], task[4:])
        except Exception as error:
            return trouble(error)

    def _reply(self, shard: DeviceData, data: bytes) -> bytes:
        request = self.link.receive(data, self.param_spec)
        reply = answer(self.engine, request, shard, self.seed)
        return encode_reply(reply, request.theta.mask)


def trouble(error: Exception) -> bytes:
    """An error as an outcome: in words where a user can mend it, else with where it happened."""
    if isinstance(error, FedTinyError):
        return FAILED + str(error).encode()
    return BROKEN + "".join(traceback.format_exception(error)).encode()
