"""Work recorded once as a CUDA graph and replayed as one launch."""

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

AHEAD = 32  # replays that may wait on the stream before the host waits for them

_RECORDING = Lock()


class Recording(Generic[T]):
    """Some work on a stream, whose tensors all stay in place, and what it gives.

    The work is rehearsed first, so that libraries have chosen and allocated. Any other thread
    may compute meanwhile, but not record.
    """

    def __init__(self, work: Callable[[], T], stream: torch.cuda.Stream, rehearsals: int) -> None:
        self.stream = stream
        self._work = work  # holds the tensors that the graph reads
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), _RECORDING:
            for _ in range(rehearsals):
                work()
            stream.synchronize()
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.result = work()
            finally:
                self._graph.capture_end()

    def __call__(self) -> T:
        """Put the work on the stream once more; its result lies where it lay before."""
        self._graph.replay()
        return self.result

    def repeat(self, times: int) -> None:
        """Do the work so many times; the host sleeps while the stream is well ahead of it."""
        behind = torch.cuda.Event(blocking=True)
        for done in range(times):
            if done % AHEAD == 0:
                behind.synchronize()
                behind = torch.cuda.Event(blocking=True)
                behind.record(self.stream)
            self._graph.replay()
