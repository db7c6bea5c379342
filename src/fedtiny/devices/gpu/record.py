"""Work recorded once as a CUDA graph and replayed as one launch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

import torch

T = TypeVar("T")

AHEAD = 32  # replays that may wait on the stream before the host waits for them

_RECORDING = Lock()


@contextmanager
def _rounding(tf32: bool | None) -> Iterator[None]:
    """Let fp32 kernels use the tensor cores or not; None leaves it as it is."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    if tf32 is not None:
        cudnn.allow_tf32 = matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32 = before


class Recording(Generic[T]):
    """Some work on a stream, whose tensors all stay in place, and what it gives.

    The work is rehearsed first, so that libraries have chosen and allocated. Any other thread
    may compute meanwhile, but not record.
    """

    def __init__(
        self,
        work: Callable[[], T],
        stream: torch.cuda.Stream,
        rehearsals: int,
        tf32: bool | None = None,
    ) -> None:
        self.stream = stream
        self._work = work  # holds the tensors that the graph reads
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), _RECORDING, _rounding(tf32):
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
