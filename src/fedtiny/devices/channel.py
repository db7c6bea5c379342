"""Whole messages over two byte streams: a mark, the length (u64, little-endian), the bytes."""

import contextlib
from typing import IO

MARK = b"FTch"
LENGTH_BYTES = 8


class Channel:
    """A pipe in the sense of `dialogue`, for processes that share nothing but two streams."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self.reader = reader
        self.writer = writer

    def send_bytes(self, buf: bytes, /) -> None:
        self.writer.write(MARK + len(buf).to_bytes(LENGTH_BYTES, "little"))
        self.writer.write(buf)
        self.writer.flush()

    def recv_bytes(self) -> bytes:
        if self._read(len(MARK)) != MARK:
            raise OSError("somebody else writes into this stream")
        return self._read(int.from_bytes(self._read(LENGTH_BYTES), "little"))

    def _read(self, size: int) -> bytes:
        found = self.reader.read(size)
        if len(found) < size:
            raise EOFError
        return found

    def close(self) -> None:
        for stream in (self.writer, self.reader):
            with contextlib.suppress(OSError):  # what was not sent yet has no reader any more
                stream.close()
