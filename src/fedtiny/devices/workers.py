"""A process and a child that does tasks for it: what they say to each other, over any pipe.

A task is the device's number (u32) and a request in the wire format. An outcome is a byte and what
it announces: a reply in the wire format, a failure that a user can mend, or a traceback.
"""

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from fedtiny import __version__
from fedtiny.devices.channel import Channel
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import Engine
from fedtiny.devices.node import Receiver, answer
from fedtiny.errors import FedTinyError, ReplyError, WireError, naming_flags
from fedtiny.federation import wire
from fedtiny.federation.messages import Reply, Request

DONE, FAILED, BROKEN = b"\0", b"\1", b"\2"
GONE = (EOFError, BrokenPipeError, ConnectionResetError)


@dataclass(frozen=True)
class Task:
    """A request to one device."""

    shard: DeviceData
    request: Request


Pipe = Connection | Channel


class Closable(Protocol):
    """Whatever can be let go of."""

    def close(self) -> None:
        """Let go."""


PARENT_ENDS: set[Closable] = set()  # a child that kept one open would outlive its parent


class Worker:
    """The parent's end of a child that does a task at a time; it knows what the child holds."""

    def __init__(self, pipe: Pipe) -> None:
        self.pipe = pipe
        self.known = wire.NOTHING_KNOWN
        PARENT_ENDS.add(pipe)

    def start(self, task: Task) -> None:
        """Give the child a task."""
        self.ask(task.shard.device, task.request)

    def finish(self, task: Task) -> Reply | FedTinyError:
        """What came of the task that the child was given last."""
        return reply_in(self.answered(), task.request)

    def ask(self, device: int, request: Request) -> None:
        """Send a request, without what the child holds already."""
        known, self.known = self.known, wire.Known.of(request.theta)
        self.tell(device.to_bytes(4, "little") + wire.encode_request(request, known))

    def tell(self, message: bytes) -> None:
        """Send the child a message."""
        try:
            self.pipe.send_bytes(message)
        except (EOFError, OSError) as error:
            raise self.died(error) from error

    def outcome(self) -> bytes | FedTinyError:
        """What the child has done, or what kept it from it."""
        answered = self.answered()
        return failure_in(answered) or answered[1:]

    def answered(self, most: int | None = None) -> bytes:
        """The next thing that the child says, of so many bytes at most."""
        try:
            return self.pipe.recv_bytes(most)
        except (EOFError, OSError) as error:
            raise self.died(error) from error

    def died(self, error: Exception) -> FedTinyError:
        """What to tell a user if the child is gone."""
        return FedTinyError("a worker process died, perhaps for want of memory; lower --workers")

    def close(self) -> None:
        """End the child."""
        PARENT_ENDS.discard(self.pipe)
        self.pipe.close()


def serve(pipe: Pipe, engine: Engine, spec: DeviceSpec, shards: Sequence[DeviceData]) -> None:
    """A child's life: do tasks until the parent goes away."""
    own, receiver = {shard.device: shard for shard in shards}, Receiver()

    def outcome(task: bytes) -> bytes:
        try:
            shard = own[int.from_bytes(task[:4], "little")]
            request = receiver.receive(task[4:], spec.param_spec)
            return outcome_of(answer(engine, request, shard, spec.config.seed), request)
        except Exception as error:
            return trouble(error)

    with contextlib.suppress(*GONE):
        while True:
            pipe.send_bytes(outcome(pipe.recv_bytes()))


def outcome_of(reply: Reply | FedTinyError, request: Request) -> bytes:
    """What came of a request, as an outcome."""
    try:
        if isinstance(reply, FedTinyError):
            raise reply
        return DONE + wire.encode_reply(reply, request.theta.mask)
    except FedTinyError as error:
        return trouble(error)


def failure_in(outcome: bytes) -> FedTinyError | None:
    """The failure that an outcome announces, if it does; a traceback is raised."""
    if outcome[:1] == BROKEN:
        raise RuntimeError(f"a worker process failed:\n{outcome[1:].decode()}")
    return FedTinyError(outcome[1:].decode()) if outcome[:1] == FAILED else None


def reply_in(outcome: bytes, request: Request) -> Reply | FedTinyError:
    """What came of a request, from an outcome."""
    failure = failure_in(outcome)
    if failure is not None:
        return failure
    theta = request.theta
    try:
        return wire.decode_reply(outcome[1:], theta.param_spec, theta.mask)
    except WireError as error:
        return ReplyError(str(error))


def trouble(error: Exception) -> bytes:
    """An error as an outcome: a sentence if a user can mend it, else with where it happened."""
    if isinstance(error, FedTinyError):
        return FAILED + str(error).encode()
    return BROKEN + "".join(traceback.format_exception(error)).encode()


def ignore_terminal() -> None:
    """Leave Ctrl-C and a terminal that goes away to the parent, which ends its children."""
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def main() -> None:
    """The life of a device in a process of its own, without torch (see `SubprocessExecutor`).

    It is given a spec and the data of its devices on its standard input, says that it is ready, and
    answers on its standard output until its input ends.
    """
    from fedtiny.devices.native_engine import NativeEngine

    ignore_terminal()
    channel = _own_streams()
    with contextlib.suppress(*GONE), naming_flags():  # the parent names them as its user does
        channel.send_bytes(DONE + __version__.encode())
        plain = channel.recv_bytes()
        count = int.from_bytes(channel.recv_bytes(), "little")
        packed = [channel.recv_bytes() for _ in range(count)]
        try:
            spec = DeviceSpec.from_plain(json.loads(plain))
            engine, shards = NativeEngine(spec), [DeviceData.from_bytes(each) for each in packed]
        except Exception as error:
            channel.send_bytes(trouble(error))
            return
        channel.send_bytes(DONE)
        serve(channel, engine, spec, shards)


def _own_streams() -> Channel:
    """Standard input and output, kept from anyone who prints."""
    reader, writer = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    os.dup2(sys.stderr.fileno(), 1)
    return Channel(reader, writer)


if __name__ == "__main__":
    main()
