"""Frames over byte streams: a pipe's, a socket's or a serial line's."""

import contextlib
import os
import select
import time
from typing import Protocol

MARK = b"FTch"
LENGTH_BYTES = 8
CHUNK = 1 << 16
ENDED = getattr(select, "POLLRDHUP", select.POLLHUP)
STALL = 20.0  # seconds that one to whom a frame is handed on may take for a piece of it


class TooLongError(OSError):
    """A frame that says it is longer than any that is expected; it is not read."""


class Stream(Protocol):
    """Whatever the system reads and writes by a number: a file, a socket."""

    def fileno(self) -> int:
        """The system's number."""

    def close(self) -> None:
        """Let it go."""


class Channel:
    """A connection over two byte streams: a mark, the length (u64, little-endian), the bytes.

    A frame takes at most `timeout` seconds each way. On a line that others write into as well, up
    to `noise` bytes before a mark are passed over. What is held of a frame is what has come of it.
    """

    certificate = ""  # digest of the one that the other side has shown, under TLS

    def __init__(
        self, reader: Stream, writer: Stream, *, timeout: float | None = None, noise: int = 0
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.timeout = timeout
        self.noise = noise
        self.is_open = True
        os.set_blocking(writer.fileno(), False)

    def send_bytes(self, buf: bytes, /) -> None:
        """Send a frame."""
        until = self._until()
        self._write(MARK + len(buf).to_bytes(LENGTH_BYTES, "little"), until)
        self._write(buf, until)

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """The next frame; one of more bytes than `maxlength` is not read."""
        until = self._until()
        return self._read(self._next_length(until, maxlength), until)

    def recv_short(self, most: int) -> bytes:
        """The next frame; one of more bytes is passed over, and nothing is given for it."""
        until = self._until()
        left = self._next_length(until)
        if left <= most:
            return self._read(left, until)
        while left:
            left -= len(self._read(min(left, CHUNK), until))
        return b""

    @property
    def has_ended(self) -> bool:
        """Whether the other side is known to be gone, though what it sent may still be read."""
        poll = select.poll()
        poll.register(self.reader.fileno(), ENDED)
        return bool(poll.poll(0))

    def relay(self, to: "Channel") -> bytes:
        """Hand the next frame on piece by piece, so that none is held; gives its first byte."""
        until, first = self._until(), b""
        left = self._next_length(until)
        to._write(MARK + left.to_bytes(LENGTH_BYTES, "little"), time.monotonic() + STALL)
        while left:
            piece = self._read(min(left, CHUNK), until)
            to._write(piece, time.monotonic() + STALL)
            left -= len(piece)
            first = first or piece[:1]
        return first

    def _until(self) -> float | None:
        return None if self.timeout is None else time.monotonic() + self.timeout

    def _next_length(self, until: float | None, maxlength: int | None = None) -> int:
        found = self._read(len(MARK), until)
        for _ in range(self.noise):
            if found == MARK:
                break
            found = found[1:] + self._read(1, until)
        if found != MARK:
            raise OSError("somebody else writes into this stream")
        length = int.from_bytes(self._read(LENGTH_BYTES, until), "little")
        if maxlength is not None and length > maxlength:
            raise TooLongError(f"it has {length} bytes, and {maxlength} are the most")
        return length

    def _read(self, size: int, until: float | None) -> bytes:
        found = bytearray()
        while len(found) < size:
            with contextlib.suppress(BlockingIOError):
                piece = self._take(min(size - len(found), CHUNK), until)
                if not piece:
                    raise EOFError
                found += piece
        return bytes(found)

    def _write(self, data: bytes, until: float | None) -> None:
        left = memoryview(data)
        while left:
            with contextlib.suppress(BlockingIOError):
                left = left[self._give(left, until) :]

    def _take(self, size: int, until: float | None) -> bytes:
        """What has come, up to so many bytes; nothing at the end of the stream."""
        self._ready(self.reader, select.POLLIN, until)
        return os.read(self.reader.fileno(), size)

    def _give(self, data: memoryview, until: float | None) -> int:
        """Write what can be written; gives how many bytes that was."""
        self._ready(self.writer, select.POLLOUT, until)
        return os.write(self.writer.fileno(), data)

    def _ready(self, stream: Stream, event: int, until: float | None) -> None:
        """Wait until something can be read or written, or the other side is gone."""
        if not self.is_open:
            raise EOFError
        poll = select.poll()
        poll.register(stream.fileno(), event)
        left = None if until is None else max(0.0, until - time.monotonic())
        if not poll.poll(None if left is None else 1000 * left):
            raise TimeoutError

    def close(self) -> None:
        """End it; twice does no harm."""
        self.is_open = False
        for stream in (self.writer, self.reader):
            with contextlib.suppress(OSError):  # what was not sent yet has no reader any more
                stream.close()
