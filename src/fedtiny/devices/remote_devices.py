"""Devices without Python: each is found at its place, told its spec, and asked what others are."""

import contextlib
import json
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtiny.devices.channel import Channel, TooLongError
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.executors import Executor
from fedtiny.devices.hello import HELLO, SENTENCE_BYTES, Hello, sentence
from fedtiny.devices.listener import Listener
from fedtiny.devices.place_names import place_of, places_by_device
from fedtiny.devices.places import RETURN_SECONDS, Place
from fedtiny.devices.workers import DONE, FAILED, PARENT_ENDS, Task, Worker, reply_in
from fedtiny.errors import FedTinyError, ReplyError
from fedtiny.federation import wire
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.reply_spec import expected, reply_limit
from fedtiny.models.param_spec import Shape

MISSING = b"\3"  # an outcome: the request builds on what the device does not hold
REWRITE = "write its data again with: fedtiny data devices"


class DeviceGone(FedTinyError):  # noqa: N818
    """A device whose connection has ended, or that has started anew: it may be met again."""


class RemoteDevice(Worker):
    """A device that speaks the wire format over some stream.

    One that is lost while it is asked is looked for once more, told all anew and asked again; if it
    is not there then, its request has failed.
    """

    def __init__(self, device: int | None, place: Place, timeout: float) -> None:
        """Meet a device, or whichever is there."""
        self.place = place
        self.timeout = timeout
        self.spec = b""
        self.wait = timeout
        channel, self.hello = self._found(device)
        self.device = next(n for n in (device, self.hello.device, 0) if n is not None)
        super().__init__(channel)

    def _found(self, device: int | None) -> tuple[Channel, Hello]:
        """The device, waited for; one that was not there is not waited for again."""
        wait, self.wait = self.wait, 0.0
        try:
            found = self.place.open(device, self.timeout, wait)
            self.wait = min(self.timeout, RETURN_SECONDS)
            return found
        except FedTinyError as error:
            who = "the device" if device is None else f"device {device}"
            raise FedTinyError(f"{who} cannot be reached: {error}") from error

    def check(self, shape: Shape, classes: int, shard: DeviceData | None = None) -> None:
        """Refuse a device whose data are not those that the run expects of it."""
        try:
            self.hello.check(self.device, shape, classes)
        except FedTinyError as error:
            raise FedTinyError(f"device {self.device}: {error}; {REWRITE}") from error
        if shard is not None:
            own = (self.hello.samples, self.hello.development)
            if own != (len(shard), len(shard.development)):
                raise FedTinyError(
                    f"device {self.device} has {own[0]} samples, {own[1]} of them to measure with, "
                    f"and the run gives it {len(shard)} and {len(shard.development)}; {REWRITE}"
                )
            if self.hello.digest != shard.digest:
                raise FedTinyError(
                    f"device {self.device} has other samples than the run gives it; {REWRITE}"
                )

    def equip(self, spec: DeviceSpec) -> None:
        """Tell the device how it trains and on what network; raises what it says against that."""
        config = spec.config  # without commands, which are nobody else's business
        config = replace(config, device=replace(config.device, python=None, program=None))
        self.spec = json.dumps(replace(spec, config=config).to_plain()).encode()
        try:
            self._tell_spec()
        except DeviceGone:
            self._meet_again()

    def _tell_spec(self) -> None:
        self.known = wire.NOTHING_KNOWN
        self.tell(self.spec)
        outcome = self.answered(SENTENCE_BYTES)
        if outcome != DONE:
            raise _failure_in(outcome, self.device)

    def _meet_again(self) -> None:
        self.close()
        self.pipe, hello = self._found(self.device)
        PARENT_ENDS.add(self.pipe)
        if hello.data != self.hello.data:
            self.close()
            raise FedTinyError(f"device {self.device} has come back with other data; {REWRITE}")
        self._tell_spec()

    def start(self, task: Task) -> None:
        """Ask; a device that is not there is looked for when its answer is wanted."""
        with contextlib.suppress(FedTinyError):
            self.ask(self.device, task.request)

    def finish(self, task: Task) -> Reply | FedTinyError:
        """What came of it; a trouble is the device's, and no reason to end a run."""
        return self._answer_to(task.request)

    def answer(self, request: Request) -> Reply | FedTinyError:
        """Ask, and wait for what comes of it."""
        with contextlib.suppress(FedTinyError):
            self.ask(self.device, request)
        return self._answer_to(request)

    def _answer_to(self, request: Request) -> Reply | FedTinyError:
        """What the device answers to the request that it was sent, perhaps when met again."""
        try:
            try:
                return self._reply(request)
            except DeviceGone:
                self._meet_again()
                self.ask(self.device, request)
                return self._reply(request)
        except FedTinyError as error:
            return error

    def _reply(self, request: Request) -> Reply | FedTinyError:
        most = max(SENTENCE_BYTES, len(DONE) + reply_limit(request, expected(request)))
        outcome = self.answered(most)
        if outcome[:1] == MISSING:
            self.known = wire.NOTHING_KNOWN
            self.ask(self.device, request)
            outcome = self.answered(most)
        if outcome[:1] == DONE:
            return reply_in(outcome, request)
        self.known = wire.NOTHING_KNOWN
        raise _failure_in(outcome, self.device)

    def died(self, error: Exception) -> FedTinyError:
        """What is told of a device that is lost, late, or says what no device says."""
        self.close()
        if isinstance(error, TimeoutError):
            return FedTinyError(f"no answer within {self.timeout:g} s; raise --device.timeout")
        if isinstance(error, TooLongError):
            return ReplyError(str(error))
        last = self.place.last_words()
        lost = f"device {self.device} is gone"
        return DeviceGone(f"{lost}; {last}" if last else lost)


def _failure_in(outcome: bytes, device: int) -> FedTinyError:
    """What a device says in place of what it was asked for; nothing in it is trusted."""
    if outcome[:1] == HELLO:
        return DeviceGone(f"device {device} has started anew")
    if outcome[:1] != FAILED:
        return ReplyError("it is no outcome of a request")
    return FedTinyError(sentence(outcome[1:]) or "the device failed, and does not say why")


class RemoteDevices:
    """All devices of a run that are somewhere else, by their numbers."""

    def __init__(self, programs: str, shards: Sequence[DeviceData], timeout: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedtiny-devices-")
        self._places: dict[str, Place] = {}
        self._devices: dict[int, RemoteDevice] = {}
        try:
            own = {shard.device: shard for shard in shards}
            named = places_by_device(programs, len(own))
            places = {device: self._place(text, own[device]) for device, text in named.items()}
            for device, place in places.items():
                found = self._devices[device] = RemoteDevice(device, place, timeout)
                found.check(own[device].data.shape, len(own[device].data.classes), own[device])
        except BaseException:
            self.close()
            raise

    def _place(self, text: str, shard: DeviceData) -> Place:
        """Where a device is; several may connect to one address. A program finds its data there."""
        key = text if text.startswith(("tcp://", "tls://")) else str(shard.device)
        if "{data}" in text:
            file = Path(self._folder.name) / f"device{shard.device}.ftd"
            file.write_bytes(shard.to_bytes())
            text = text.replace("{data}", shlex.quote(str(file)))
        if key not in self._places:
            self._places[key] = place_of(text.replace("{device}", str(shard.device)))
        place = self._places[key]
        if isinstance(place, Listener):
            place.expected = {**(place.expected or {}), shard.device: shard.digest}
        return place

    def __contains__(self, device: object) -> bool:
        return device in self._devices

    def __getitem__(self, device: int) -> RemoteDevice:
        return self._devices[device]

    @property
    def hellos(self) -> Mapping[int, Hello]:
        """What each said of itself."""
        return {number: device.hello for number, device in self._devices.items()}

    def equip(self, spec: DeviceSpec) -> None:
        """Tell every device how it trains."""
        for device in self._devices.values():
            device.equip(spec)

    def close(self) -> None:
        for device in self._devices.values():
            device.close()
        for place in self._places.values():
            place.close()
        self._folder.cleanup()


class MixedExecutor:
    """Some devices somewhere else, the others played by another executor."""

    def __init__(self, remote: RemoteDevices, rest: Executor) -> None:
        self.remote = remote
        self.rest = rest

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        far = [task for task in tasks if task.shard.device in self.remote]
        for task in far:
            self.remote[task.shard.device].start(task)
        near = self.rest.answers([task for task in tasks if task.shard.device not in self.remote])
        return self._in_order(tasks, near)

    def _in_order(
        self, tasks: Sequence[Task], near: Iterator[Reply | FedTinyError]
    ) -> Iterator[Reply | FedTinyError]:
        for task in tasks:
            device = task.shard.device
            yield self.remote[device].finish(task) if device in self.remote else next(near)

    def account(self) -> dict[str, Any]:
        return self.rest.account()

    def close(self) -> None:
        self.remote.close()
        self.rest.close()
