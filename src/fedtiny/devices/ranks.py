"""The processes that play one run together (ranks), and what they say to each other.

Messages are bytes over gloo, on the host: replies are host arrays wherever they were computed.
Beside them is a key-value store, where each rank shows that it is alive and says why it fails if it
does. So whoever waits for a rank learns why it will not come.
"""

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from types import FrameType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import FedTinyError
from fedtiny.extras import require
from fedtiny.process import Launch, launch

JOIN = timedelta(minutes=10)  # until every rank must have started
TRANSFER = timedelta(days=1)  # a rank may compute for long; the beats tell whether it is alive
BEAT = 2.0  # seconds between two signs of life
LOST = 60.0  # seconds without a sign of life
LOOK = 0.5  # seconds between two looks at the others while waiting
PAUSE = 0.01  # seconds at most between two looks at a message under way
ENDED = "another rank of this run has ended or cannot be reached"
TERMINATED = "this rank was terminated, as torchrun does with all if one ends"
ADVICE = "; continue with fedtiny resume and the run's folder, with any number of ranks"
_NUMBERS = itertools.count()


class RankLostError(FedTinyError):
    """A run cannot go on because one of its ranks is gone."""


class Ranks(Protocol):
    """The ranks of a run, seen from one of them."""

    @property
    def rank(self) -> int:
        """The number of this one; 0 writes the run folder and prints."""

    @property
    def size(self) -> int:
        """How many there are."""

    def exchange(self, message: bytes) -> list[bytes]:
        """The message of every rank, by rank; all ranks call it the same number of times."""


class OneRank:
    """A run in one process."""

    rank, size = 0, 1

    def exchange(self, message: bytes) -> list[bytes]:
        return [message]


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks of this run while it lasts; a rank that fails tells the others why."""
    place = launch()
    if place.size == 1:
        yield OneRank()
        return
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no stack of a store that is gone
    ranks = GlooRanks(place)
    try:
        ranks.join()
        yield ranks
        ranks.exchange(b"")  # nobody leaves while another needs it
    except BaseException as error:
        ranks.fail(error)
        raise
    else:
        ranks.leave()
    finally:
        ranks.restore_signal()


class GlooRanks:
    """Several processes, on one machine or more, which torchrun started."""

    def __init__(self, place: Launch) -> None:
        self.rank, self.size = place.rank, place.size
        self._distributed: Any = require("torch.distributed", extra="torch")
        self._store = self._distributed.PrefixStore(f"fedtiny/{next(_NUMBERS)}", _store())
        self._group: Any = None
        self._left = threading.Event()
        self._next_look = 0.0
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._signal_before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._signal_before = signal.signal(signal.SIGTERM, self._terminated)

    def join(self) -> None:
        """Wait for all ranks and connect to them."""
        self._store.set(f"beat/{self.rank}", "0")
        try:
            self._store.wait([f"beat/{rank}" for rank in range(self.size)], JOIN)
            self._group = self._distributed.ProcessGroupGloo(
                self._store, self.rank, self.size, TRANSFER
            )
        except RuntimeError as error:
            raise self._lost(f"not all {self.size} ranks have come in time") from error
        threading.Thread(target=self._beat, daemon=True).start()

    def exchange(self, message: bytes) -> list[bytes]:
        sizes = [int(size[0]) for size in self._gather(np.array([len(message)]))]
        padded = np.zeros(max(sizes), dtype=np.uint8)
        padded[: len(message)] = np.frombuffer(message, dtype=np.uint8)
        parts = self._gather(padded) if len(padded) else [padded] * self.size
        return [part[:size].tobytes() for part, size in zip(parts, sizes, strict=True)]

    def _gather(self, own: NDArray[Any]) -> list[NDArray[Any]]:
        """The array of every rank; all have the same shape."""
        every = [np.empty_like(own) for _ in range(self.size)]
        tensors = list(map(require("torch", extra="torch").from_numpy, (own, *every)))
        try:
            work, pause = self._group.allgather(tensors[1:], tensors[0]), PAUSE / 100
            while not work.is_completed():
                self._look_at_others()
                time.sleep(pause)
                pause = min(PAUSE, 1.5 * pause)
            work.wait()
        except RuntimeError as error:
            raise self._lost(ENDED) from error
        return every

    def _look_at_others(self) -> None:
        """Raise if a rank has failed, or has shown no sign of life for long."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK
        if self._failure():
            raise self._lost(ENDED)
        for rank in range(self.size):
            beat = self._store.get(f"beat/{rank}")
            before, since = self._seen.get(rank, (b"", now))
            self._seen[rank] = (beat, now if beat != before else since)
            if now - self._seen[rank][1] > LOST:
                raise self._lost(f"rank {rank} has shown no sign of life for {LOST:.0f} seconds")

    def _failure(self) -> str:
        """What a rank that failed has said, or nothing."""
        for rank in range(self.size):
            if self._store.check([f"failed/{rank}"]):
                return f"rank {rank}: {self._store.get(f'failed/{rank}').decode()}"
        return ""

    def _lost(self, what: str) -> RankLostError:
        """The error to raise: what a failed rank said, which rank 0 prints, or else this."""
        if self._signal_before is not None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # this rank is ending
        failure = ""
        with suppress(RuntimeError):  # the store went with its rank
            failure = self._failure()
        error = RankLostError(failure or what + ADVICE)
        error.reported = bool(failure) and self.rank > 0
        return error

    def fail(self, error: BaseException) -> None:
        """Tell the others why this rank ends; rank 0 prints it.

        The group is not closed: that could wait for a rank that is gone. The thread of the beats
        keeps it until the process ends.
        """
        if isinstance(error, RankLostError):
            return
        told = isinstance(error, FedTinyError)
        sentence = str(error) if told else f"{type(error).__name__}: {error}"
        with suppress(RuntimeError):
            self._store.set(f"failed/{self.rank}", sentence)
            if isinstance(error, FedTinyError):
                error.reported = self.rank > 0

    def leave(self) -> None:
        """The run is over for all."""
        self._left.set()
        self._group = None

    def restore_signal(self) -> None:
        """Let a signal to terminate do what it did before."""
        if self._signal_before is not None:
            signal.signal(signal.SIGTERM, self._signal_before)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        raise self._lost(TERMINATED)

    def _beat(self) -> None:
        """Show that this rank is alive, until it leaves."""
        for number in itertools.count(1):
            if self._left.wait(BEAT):
                return
            with suppress(RuntimeError):
                self._store.set(f"beat/{self.rank}", str(number))


@cache
def _store() -> Any:
    """Where the ranks find each other; one for all runs of this process."""
    distributed = require("torch.distributed", extra="torch")
    try:
        store, _, _ = next(distributed.rendezvous("env://", timeout=JOIN))
    except (RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FedTinyError(f"the other ranks of this run cannot be found: {reason}") from error
    return store
