"""Whoever connects to a door is heard in a thread of its own, so that no one keeps others waiting.

Those of whom it is not known yet what they are here for are few at any time: the oldest is sent
away for a new one.
"""

import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable

LOG = logging.getLogger("fedtiny.devices")
MAX_UNKNOWN = 64
PAUSE = 0.1  # seconds before the next try if the system cannot accept a connection


class Visitors:
    """Those who have connected and are heard; `hear` is given their socket, origin and number."""

    def __init__(self, hear: Callable[[socket.socket, str, int], None]) -> None:
        self._hear = hear
        self._numbers = itertools.count()
        self._unknown: dict[int, socket.socket] = {}

    def __len__(self) -> int:
        """How many are unknown."""
        return len(self._unknown)

    def let_in(self, door: socket.socket) -> None:
        """Accept the next one."""
        try:
            connected, origin = door.accept()
        except OSError as error:
            if door.fileno() < 0:  # it was closed
                raise
            LOG.warning("a connection could not be accepted: %s", error.strerror)
            time.sleep(PAUSE)
            return
        for oldest in tuple(self._unknown)[: 1 - MAX_UNKNOWN]:
            self._send_away(oldest)
        number = next(self._numbers)
        try:
            self._unknown[number] = connected.dup()  # to end it with, whoever has the other
            threading.Thread(
                target=self._visit, args=(connected, origin[0], number), daemon=True
            ).start()
        except (OSError, RuntimeError):  # no more files, no more threads
            self.know(number)
            connected.close()

    def _visit(self, connected: socket.socket, origin: str, number: int) -> None:
        try:
            self._hear(connected, origin, number)
        finally:
            self.know(number)

    def know(self, number: int) -> None:
        """That one is not sent away any more."""
        if found := self._unknown.pop(number, None):
            found.close()

    def _send_away(self, number: int) -> None:
        if found := self._unknown.pop(number, None):
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            found.close()

    def close(self) -> None:
        """Let go of all: here, for in a child of this process they are still the parent's."""
        for number in tuple(self._unknown):
            self.know(number)
