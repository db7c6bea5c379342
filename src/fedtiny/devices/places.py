"""Where a device without Python is: a program to start, a gateway, a serial line.

An address at which devices connect is in `listener.py`.
"""

import contextlib
import logging
import os
import secrets
import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Protocol

from fedtiny.devices.channel import Channel
from fedtiny.devices.hello import HELLO, HELLO_BYTES, NO_DEVICE, Hello
from fedtiny.devices.tls import SecureChannel, refusal, secured
from fedtiny.errors import ConfigError, FedTinyError, printable

LOG = logging.getLogger("fedtiny.devices")
LAST_OUTPUT = 300  # bytes of what a program printed before it died
BOOT_MESSAGES = 1 << 16  # bytes on a serial line before a device says hello
HELLO_SECONDS = 20.0  # that a device may take to say hello once it is there
SILENCE = 3.0  # seconds after which a device on a serial line is asked again who it is
RETURN_SECONDS = 60.0  # that a device may take to come back
RETRY = 0.2  # seconds before a line that is gone is looked for again
PATIENCE = 2.0  # seconds that a program may take to end
BAUD = 115200
ASK_WHO = b"?"  # say hello, and repeat what follows
QUESTION_BYTES = 8


class Place(Protocol):
    """Finds a device, as often as it is lost."""

    def open(self, device: int | None, timeout: float, wait: float) -> tuple[Channel, Hello]:
        """A fresh connection to a device, or to any, and what it says of itself.

        Raises if nobody is there within `wait` seconds; `timeout` is for each frame from then on.
        """

    def last_words(self) -> str:
        """What is known of why a connection ended, or nothing."""

    def close(self) -> None:
        """Let the device go."""


def greeted(channel: Channel, seconds: float | None = None) -> tuple[Channel, Hello]:
    """The channel once the device at its other end has said hello; it is closed if it does not."""
    patience, channel.timeout = channel.timeout, seconds or HELLO_SECONDS
    try:
        said = _hello_on_a_line(channel) if channel.noise else channel.recv_bytes(HELLO_BYTES)
        hello = Hello.read(said)
    except (EOFError, OSError) as error:
        channel.close()
        if isinstance(error, TimeoutError):
            raise FedTinyError("it says nothing") from error
        raise FedTinyError(refusal(error) or NO_DEVICE) from error
    except FedTinyError:
        channel.close()
        raise
    channel.timeout = patience
    return channel, hello


def _hello_on_a_line(channel: Channel) -> bytes:
    """A device's answer to the question who it is; all else on the line came before it.

    A device that has just started may have missed the question, and one that was cut off inside a
    frame takes it for the rest: both are asked anew, once they are silent. If they were asked with
    every hello of before, each answer would be to the question before.
    """
    until = time.monotonic() + (channel.timeout or HELLO_SECONDS)
    while True:
        question = secrets.token_hex(QUESTION_BYTES).encode()
        channel.send_bytes(ASK_WHO + question)
        try:
            while (left := until - time.monotonic()) > 0:
                channel.timeout = min(SILENCE, left)
                said = channel.recv_short(HELLO_BYTES)
                if said[:1] == HELLO and question in said:
                    return said
            raise TimeoutError
        except TimeoutError:
            if time.monotonic() >= until:
                raise


class Program:
    """A program on this machine that is started, and started again when it has died."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115

    def open(self, device: int | None, timeout: float, wait: float) -> tuple[Channel, Hello]:
        self._end()
        self._printed.seek(0)
        self._printed.truncate()
        try:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                self.command, stdin=pipe, stdout=pipe, stderr=self._printed, bufsize=0
            )
        except OSError as error:
            raise FedTinyError(f"cannot start '{self.command[0]}': {error.strerror}") from error
        assert self.process.stdin
        assert self.process.stdout
        channel = Channel(self.process.stdout, self.process.stdin, timeout=timeout)
        try:
            return greeted(channel)
        except FedTinyError as error:
            last = self.last_words()
            self._end()
            raise FedTinyError(f"{error}; {last}" if last else str(error)) from error

    def last_words(self) -> str:
        end = self._printed.seek(0, 2)
        self._printed.seek(max(0, end - LAST_OUTPUT))
        last = self._printed.read().decode(errors="replace").strip().splitlines()
        return f"its last words were: {printable(last[-1])}" if last else ""

    def _end(self) -> None:
        """End the program: its input ends first, so that it may go by itself."""
        if self.process is None:
            return
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def close(self) -> None:
        self._end()
        self._printed.close()


def over(
    connected: socket.socket,
    timeout: float,
    tls: ssl.SSLContext | None = None,
    host: str | None = None,
) -> Channel:
    """A channel over a socket, with `tls` to `host`, or from somebody who has connected here.

    A device that lost its power is noticed after a minute or so.
    """
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    if tls is None:
        return Channel(connected, connected, timeout=timeout)
    return SecureChannel(secured(connected, tls, HELLO_SECONDS, host), timeout=timeout)


class Gateway:
    """A `fedtiny gateway` that holds the device for us."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.host = host
        self.port = port
        self.tls = tls

    def open(self, device: int | None, timeout: float, wait: float) -> tuple[Channel, Hello]:
        try:
            connected = socket.create_connection((self.host, self.port), HELLO_SECONDS)
        except OSError as error:
            why = error.strerror or error
            raise FedTinyError(f"no gateway at {self.host}:{self.port}: {why}") from error
        channel = over(connected, timeout, self.tls, self.host if self.tls else None)
        return greeted(channel, RETURN_SECONDS + HELLO_SECONDS)

    def last_words(self) -> str:
        return "its gateway has lost it"

    def close(self) -> None:
        """A connection is all there was."""


class SerialLine:
    """A line to a board, which may have been up for long: it is asked who it is.

    A line that was there before is waited for: a board without power takes its line with it.
    """

    def __init__(self, path: Path, baud: int = BAUD) -> None:
        self.path = path
        self.baud = baud
        self._was_there = False

    def open(self, device: int | None, timeout: float, wait: float) -> tuple[Channel, Hello]:
        until = time.monotonic() + (wait if self._was_there else 0.0)
        while True:
            try:
                found = self._asked(timeout)
                self._was_there = True
                return found
            except FedTinyError as error:
                if isinstance(error, ConfigError) or time.monotonic() > until:
                    raise
            time.sleep(RETRY)

    def _asked(self, timeout: float) -> tuple[Channel, Hello]:
        """The line, opened anew, once its board has said who it is."""
        try:
            line = os.fdopen(_raw_line(self.path, self.baud), "r+b", buffering=0)
        except OSError as error:
            raise FedTinyError(f"cannot open {self.path}: {error.strerror}") from error
        return greeted(Channel(line, line, timeout=timeout, noise=BOOT_MESSAGES))

    def last_words(self) -> str:
        return ""

    def close(self) -> None:
        """The channel was all there was."""


def _raw_line(path: Path, baud: int) -> int:
    """A serial line as the system opens it: bytes as they are, eight bits, no parity."""
    import termios
    import tty

    speed = getattr(termios, f"B{baud}", None)
    if speed is None:
        raise ConfigError(f"a serial line has no {baud} baud; take 115200 or another usual one")
    line = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        tty.setraw(line)
        settings = termios.tcgetattr(line)
        settings[2] |= termios.CLOCAL | termios.CREAD
        settings[4] = settings[5] = speed
        termios.tcsetattr(line, termios.TCSANOW, settings)
        termios.tcflush(line, termios.TCIOFLUSH)
    except termios.error as error:
        os.close(line)
        raise OSError(error.args[0], str(error.args[-1])) from error
    return line
