"""Stands for a device without Python: holds its connection, and hands frames on, unread.

A Flower ClientApp is a fresh process for every message. It meets the device here, as if the device
itself were here: hello, spec, requests. A spec that the device has already is not sent again, so
that it keeps the mask and the theta of the message before.
"""

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Iterator

from fedtiny.devices.channel import Channel
from fedtiny.devices.hello import HELLO, SENTENCE_BYTES, Hello
from fedtiny.devices.listener import Listener
from fedtiny.devices.places import HELLO_SECONDS, RETURN_SECONDS, Place, over
from fedtiny.devices.visitors import Visitors
from fedtiny.devices.workers import DONE, FAILED
from fedtiny.errors import FedTinyError

LOG = logging.getLogger("fedtiny.devices")
SPEC = b"{"  # JSON; a request has its own mark behind the number of the device
REQUEST = b"FTNY"
SPEC_BYTES = 1 << 24
REQUEST_BYTES = 1 << 30  # at most; a device reads no more either
GONE = (EOFError, OSError)


class DeviceGateway:
    """One device, and whoever asks it: all at a time, and the device one after the other."""

    def __init__(self, place: Place, timeout: float) -> None:
        self.place = place
        self.timeout = timeout
        self.device, self.hello = self._met(timeout)
        self._turn = threading.Lock()  # whose turn it is to ask the device
        self._spec = b""
        self._visitors = Visitors(self._hear)
        self._tls: ssl.SSLContext | None = None

    def _met(self, wait: float) -> tuple[Channel, Hello]:
        try:
            return self.place.open(None, self.timeout, wait)
        except FedTinyError as error:
            raise FedTinyError(f"the device cannot be reached: {error}") from error

    def _met_again(self) -> tuple[Channel, Hello]:
        device, hello = self._met(RETURN_SECONDS)
        if hello.data != self.hello.data:
            device.close()
            raise FedTinyError(
                "another device is where the gateway's was, with other data; "
                "start the gateway anew to take it"
            )
        return device, hello

    def serve(self, door: Listener) -> None:
        """Answer who connects, until this process is stopped."""
        self._tls = door.tls
        while True:
            self._visitors.let_in(door.socket)

    def _hear(self, connected: socket.socket, origin: str, number: int) -> None:
        try:
            app = over(connected, HELLO_SECONDS, self._tls)
        except FedTinyError as error:
            LOG.warning("a connection from %s was refused: %s", origin, error)
            return
        with contextlib.suppress(*GONE), contextlib.closing(app):
            self.stand_for_device(app, number)

    def stand_for_device(self, app: Channel, number: int) -> None:
        """Let one who has connected speak with the device; either may end it.

        What it says first is a spec, at once; who has told one that the device takes may be silent.
        """
        try:
            self._require_device()
        except FedTinyError as error:
            app.send_bytes(FAILED + str(error).encode()[: SENTENCE_BYTES - 1])
            return
        app.send_bytes(self.hello.to_bytes())
        spec = b""
        while True:
            frame = app.recv_bytes(REQUEST_BYTES if spec else SPEC_BYTES)
            if frame[:1] == SPEC and frame[4:8] != REQUEST:
                outcome = self._told(frame)
                app.send_bytes(outcome)
                if outcome == DONE:
                    spec, app.timeout = frame, self.timeout
                    self._visitors.know(number)
            elif spec and frame[4:8] == REQUEST:
                self._hand_on(frame, spec, app)
            else:
                app.send_bytes(FAILED + b"a gateway takes a spec and then requests")
                return

    def _require_device(self) -> None:
        """Meet the device again if it was lost."""
        if self.device.is_open:
            return
        with self._turn:
            if not self.device.is_open:
                self._spec = b""
                self.device, self.hello = self._met_again()

    def _told(self, spec: bytes) -> bytes:
        """What the device says to a spec, unless it has it already."""
        with self._turn, self._lost_with_trouble():
            return self._tell(spec)

    def _tell(self, spec: bytes) -> bytes:
        if spec == self._spec:
            return DONE
        self._spec = b""
        self.device.send_bytes(spec)
        outcome = self.device.recv_bytes(SENTENCE_BYTES)
        self._spec = spec if outcome == DONE else b""
        return outcome

    def _hand_on(self, frame: bytes, spec: bytes, app: Channel) -> None:
        """Ask the device for one who told it that spec; others may have told it theirs since."""
        with self._turn, self._lost_with_trouble():
            outcome = self._tell(spec)
            if outcome != DONE:
                app.send_bytes(outcome)
                return
            self.device.send_bytes(frame)
            if self.device.relay(app) == HELLO:  # it has started anew
                self._spec = b""

    @contextlib.contextmanager
    def _lost_with_trouble(self) -> Iterator[None]:
        """If the device is lost on the way, so is the connection, and both begin anew."""
        try:
            yield
        except GONE:
            self.device.close()
            raise

    def close(self) -> None:
        """Let the device go, and who has not said what it wants."""
        self._visitors.close()
        self.device.close()
