"""The replies to one question, until it is known how they compare with each other."""

import tempfile
from collections.abc import Iterator
from typing import IO

from fedtiny.federation.messages import Reply
from fedtiny.federation.wire import decode_reply, encode_reply
from fedtiny.process import free_memory
from fedtiny.sparse.mask import Mask

LEAST_IN_MEMORY = 1 << 28  # bytes of replies that any server holds in memory
SHARE = 16  # of what is free, the part that replies may take


def in_memory() -> int:
    """Bytes of replies that are held in memory; more wait in a temporary file."""
    return max(LEAST_IN_MEMORY, (free_memory() or 0) // SHARE)


class HeldReplies:
    """Accepted replies in their order; beyond `in_memory` bytes of them in a file without a name.

    So a server needs no more memory than that and one reply, however many devices answer.
    """

    def __init__(self, mask: Mask, in_memory: int) -> None:
        self._mask, self._left = mask, in_memory
        self._replies: list[Reply | int] = []  # or the bytes that one takes in the file
        self._file: IO[bytes] | None = None

    def add(self, reply: Reply, size: int) -> None:
        """Hold a reply that takes so many bytes on the wire."""
        if size <= self._left:
            self._left -= size
            self._replies.append(reply)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._replies.append(self._file.write(encode_reply(reply, self._mask)))

    def __iter__(self) -> Iterator[Reply]:
        start = 0
        for held in self._replies:
            if isinstance(held, Reply):
                yield held
                continue
            assert self._file is not None
            self._file.seek(start)
            yield decode_reply(self._file.read(held), self._mask.param_spec, self._mask)
            start += held

    def close(self) -> None:
        """Let go of all of them."""
        self._replies.clear()
        if self._file is not None:
            self._file.close()
