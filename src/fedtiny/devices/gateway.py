"""Stands for a device without Python: holds its connection, and hands frames on, unread.

A Flower ClientApp is a fresh process for every message. It meets the device here, as if the device
itself were here: hello, spec, requests. A spec that the device has already is not sent again, so
that it keeps the mask and the theta of the message before.
"""

import contextlib
import logging

from fedtiny.devices.channel import Channel
from fedtiny.devices.hello import SENTENCE_BYTES, Hello
from fedtiny.devices.places import RETURN_SECONDS, Listener, Place, over
from fedtiny.devices.workers import DONE, FAILED
from fedtiny.errors import FedTinyError

LOG = logging.getLogger("fedtiny.devices")
SPEC = b"{"  # JSON; a request has its own mark behind the number of the device
REQUEST = b"FTNY"
GONE = (EOFError, OSError)


class DeviceGateway:
    """One device, and whoever asks it, one after the other."""

    def __init__(self, place: Place, timeout: float) -> None:
        self.place = place
        self.timeout = timeout
        self.device, self.hello = self._met(timeout)
        self._spec = b""

    def _met(self, wait: float) -> tuple[Channel, Hello]:
        try:
            return self.place.open(None, self.timeout, wait)
        except FedTinyError as error:
            raise FedTinyError(f"the device cannot be reached: {error}") from error

    def serve(self, door: Listener) -> None:
        """Answer who connects, until this process is stopped."""
        while True:
            connected, origin = door.socket.accept()
            try:
                app = over(connected, self.timeout, door.tls)
            except FedTinyError as error:
                LOG.warning("somebody at %s is no node: %s", origin[0], error)
                continue
            with contextlib.closing(app):
                self.stand_for_device(app)

    def stand_for_device(self, app: Channel) -> None:
        """Let one who has connected speak with the device; either may end it."""
        with contextlib.suppress(*GONE):
            try:
                self._require_device()
            except FedTinyError as error:
                app.send_bytes(FAILED + str(error).encode()[: SENTENCE_BYTES - 1])
                return
            app.send_bytes(self.hello.to_bytes())
            while True:
                self._hand_on(app.recv_bytes(), app)

    def _require_device(self) -> None:
        """Meet the device again if it was lost."""
        if self.device.is_open:
            return
        self._spec = b""
        self.device, self.hello = self._met(RETURN_SECONDS)

    def _hand_on(self, frame: bytes, app: Channel) -> None:
        """Ask the device; if it is lost on the way, so is the connection, and both begin anew."""
        is_spec = frame[:1] == SPEC and frame[4:8] != REQUEST
        if is_spec and frame == self._spec:
            app.send_bytes(DONE)
            return
        try:
            self.device.send_bytes(frame)
            if not is_spec:
                self.device.relay(app)
                return
            outcome = self.device.recv_bytes(SENTENCE_BYTES)
        except GONE:
            self.device.close()
            raise
        self._spec = frame if outcome == DONE else b""
        app.send_bytes(outcome)

    def close(self) -> None:
        """Let the device go."""
        self.device.close()
