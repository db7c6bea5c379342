"""Messages to many nodes, a few at a time, and their replies, on disk until they are averaged."""

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from fedtiny.errors import RunError
from fedtiny.federation.transport import ABSENT, STRAGGLER
from fedtiny.files import WRITING
from fedtiny.flower.messages import told

AT_ONCE = 16  # messages in memory at a time, whatever the number of nodes
PAUSE = 0.2  # seconds between two looks for replies
UNAVAILABLE = 5  # Flower's code for a node that is gone
LOST = (3, 4)  # its codes for a message or a reply that nobody has any more


class Exchange:
    """Sends messages and gives each reply as it comes, until all came or the time is up.

    More may be sent while replies come in. A reply is known by the message it answers, since an
    error that the SuperLink reports carries the SuperLink's own node id.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid = grid
        self._until = time.monotonic() + timeout
        self._awaited: dict[str, int] = {}

    @property
    def awaited(self) -> set[int]:
        """The nodes that have not answered."""
        return set(self._awaited.values())

    def send(self, kind: str, contents: Mapping[int, RecordDict]) -> set[int]:
        """Send to each node what is meant for it; gives the nodes that could not be reached."""
        nodes, lost = list(contents), set()
        for start in range(0, len(nodes), AT_ONCE):
            part = nodes[start : start + AT_ONCE]
            time_left = max(1.0, self._until - time.monotonic())
            messages = [Message(contents[node], node, kind, ttl=time_left) for node in part]
            ids = list(self._grid.push_messages(messages)) or [""] * len(part)
            self._awaited |= {id: node for id, node in zip(ids, part, strict=True) if id}
            lost |= {node for id, node in zip(ids, part, strict=True) if not id}
        return lost

    @property
    def is_over(self) -> bool:
        """Whether all have answered, or the time is up."""
        return not self._awaited or time.monotonic() >= self._until

    def replies(self) -> Iterator[tuple[int, Message]]:
        """Each reply with the node that was asked."""
        while self._awaited:
            yield from self.arrived()
            if self.is_over:
                return
            time.sleep(PAUSE)

    def arrived(self) -> Iterator[tuple[int, Message]]:
        """The replies that are there by now; this waits for none."""
        awaited = list(self._awaited)
        for start in range(0, len(awaited), AT_ONCE):
            for reply in self._grid.pull_messages(awaited[start : start + AT_ONCE]):
                node = self._awaited.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    yield node, reply


def failure(error: Error) -> str:
    """Why a message that Flower reports an error for has no answer."""
    if error.code in (*LOST, UNAVAILABLE):
        return STRAGGLER if error.code in LOST else ABSENT
    return f"its ClientApp failed: {told(error.reason or f'code {error.code}')}"


class Spool:
    """A folder of replies by device, so that a server never holds them all in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._devices: set[int] = set()

    @classmethod
    @contextmanager
    def within(cls, folder: Path) -> Iterator["Spool"]:
        """An empty spool that nobody else can look into, gone in the end.

        What a killed server left there goes too.
        """
        shutil.rmtree(folder, ignore_errors=True)
        with _told(folder):
            folder.mkdir(mode=0o700, parents=True)
        try:
            yield cls(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def put(self, device: int, reply: bytes) -> None:
        """Keep the reply of a device."""
        with _told(self._folder):
            descriptor = os.open(self._place(device), os.O_WRONLY | os.O_EXCL | WRITING, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(reply)
        self._devices.add(device)

    def in_order(self) -> Iterator[tuple[int, bytes]]:
        """Every reply in the order of devices, one in memory at a time."""
        for device in sorted(self._devices):
            with _told(self._folder):
                reply = self._place(device).read_bytes()
            yield device, reply

    def _place(self, device: int) -> Path:
        return self._folder / f"{device}.reply"


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot keep replies in {folder}: {error.strerror}") from error
