"""An address at which devices without Python connect, and which of those who do are let in."""

import logging
import select
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass

from fedtiny.devices.channel import Channel
from fedtiny.devices.hello import Hello
from fedtiny.devices.places import HELLO_SECONDS, greeted, over
from fedtiny.devices.visitors import MAX_UNKNOWN, Visitors
from fedtiny.devices.workers import PARENT_ENDS
from fedtiny.errors import FedTinyError

LOG = logging.getLogger("fedtiny.devices")
MOMENT = 1.0  # seconds that one who has just connected is waited for, at least
TICK = 0.02  # seconds between looks at who has said hello
REFUSED = "a connection from %s was refused: %s"


@dataclass(frozen=True)
class Identity:
    """By what a device is known when it comes back."""

    device: int | None
    digest: str
    """Of its data."""
    certificate: str
    """Digest of the one that it showed, if it was asked for one."""


@dataclass(frozen=True)
class Guest:
    """One who has connected and said hello."""

    channel: Channel
    hello: Hello
    origin: str

    @property
    def identity(self) -> Identity:
        return Identity(self.hello.device, self.hello.digest, self.channel.certificate)


class Listener:
    """An address at which devices connect, one or several; their hello says who they are.

    Who was asked for once is known from then on: nobody else is given for it, and who can be nobody
    that is expected is refused.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise FedTinyError(f"cannot listen at {host}:{port}: {error.strerror}") from error
        self.expected: dict[int, str] | None = None  # digests of data; any if it is not known
        self._met: dict[int | None, Identity] = {}  # by the number that was asked for
        self._waiting: dict[Identity, Guest] = {}
        self._greeted: deque[Guest] = deque()
        self._visitors = Visitors(self._greet)
        PARENT_ENDS.add(self)

    @property
    def address(self) -> str:
        """Where devices connect."""
        host, port = self.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def open(self, device: int | None, timeout: float, wait: float) -> tuple[Channel, Hello]:
        began, told = time.monotonic(), False
        while True:
            while _is_ready(self.socket, 0.0):
                self._visitors.let_in(self.socket)
            greeting = len(self._visitors)
            self._take_in()
            if guest := self._guest_for(device):
                guest.channel.timeout = timeout
                return guest.channel, guest.hello
            left = began + (max(wait, MOMENT) if greeting else wait) - time.monotonic()
            if left <= 0:
                raise FedTinyError(f"nobody has connected to {self.address}")
            if not told and left > 1:
                who = "a device" if device is None else f"device {device}"
                LOG.warning("waiting for %s at %s", who, self.address)
                told = True
            _is_ready(self.socket, min(left, TICK) if greeting else left)

    def _greet(self, connected: socket.socket, origin: str, number: int) -> None:
        """Hear who it is that has connected, in a thread of its own."""
        try:
            channel, hello = greeted(over(connected, HELLO_SECONDS, self.tls))
        except (FedTinyError, OSError) as error:
            connected.close()
            LOG.warning(REFUSED, origin, error)
            return
        self._greeted.append(Guest(channel, hello, origin))
        if self.socket.fileno() < 0:  # closed in the meantime
            channel.close()

    def _take_in(self) -> None:
        """Let those wait who were heard; the newest connection of a device is the one that counts.

        Those who may wait are few as well, and who is gone again waits no longer.
        """
        while self._greeted:
            guest = self._greeted.popleft()
            old = self._waiting.pop(guest.identity, None)
            if old is None and self.expected is None and len(self._waiting) >= MAX_UNKNOWN:
                old = self._waiting.pop(next(iter(self._waiting)))
            if old is not None:
                old.channel.close()
            self._waiting[guest.identity] = guest
        for who in [who for who, guest in self._waiting.items() if guest.channel.has_ended]:
            self._waiting.pop(who).channel.close()
        self._refuse_strangers()

    def _guest_for(self, device: int | None) -> Guest | None:
        """Who waits and is that device, which is known from now on; one with its number first."""
        fitting = [who for who in self._waiting if self._fits(who, device)]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda who: who.device is None)
        self._met[device] = chosen
        guest = self._waiting.pop(chosen)
        self._refuse_strangers()
        return guest

    def _fits(self, who: Identity, device: int | None) -> bool:
        """Whether this may be the device that is asked for by a number, or by none."""
        if device in self._met:
            return who == self._met[device]
        if device is None:
            return True
        digest = (self.expected or {}).get(device, who.digest)
        return who.device in (None, device) and who.digest == digest

    def _refuse_strangers(self) -> None:
        for who in [who for who in self._waiting if self._is_stranger(who)]:
            guest = self._waiting.pop(who)
            guest.channel.close()
            LOG.warning(REFUSED, guest.origin, self._refusal(who))

    def _is_stranger(self, who: Identity) -> bool:
        if None in self._met:  # there is one device, whatever its number
            return not self._fits(who, None)
        numbers = (who.device,) if self.expected is None else self.expected
        return not any(self._fits(who, number) for number in numbers)

    def _refusal(self, who: Identity) -> str:
        if self.expected is not None and who.device not in (None, *self.expected):
            return f"device {who.device} is not expected here"
        if any((who.device, who.digest) == (met.device, met.digest) for met in self._met.values()):
            return "it shows another certificate than the device that was here before"
        return "its number and data are not those of a device that is expected here"

    def last_words(self) -> str:
        return "it may connect again"

    def close(self) -> None:
        PARENT_ENDS.discard(self)
        self.socket.close()
        self._visitors.close()
        for guest in (*self._waiting.values(), *self._greeted):
            guest.channel.close()
        self._waiting.clear()


def _is_ready(listening: socket.socket, seconds: float) -> bool:
    """Whether somebody has connected, or does so in time."""
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
