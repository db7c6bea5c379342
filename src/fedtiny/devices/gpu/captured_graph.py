"""Work recorded once as a CUDA graph and replayed as one launch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Generic, TypeVar

import torch

from fedtiny.devices.gpu.kernels import rounding
from fedtiny.errors import ModelError

T = TypeVar("T")

AHEAD = 4  # replays between two looks; more would fill the launch queue, on which the host spins

_CAPTURING = Lock()


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Record what is done within; work that fails is what is told of, not the void recording."""
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        yield
    except BaseException:
        with suppress(RuntimeError):
            graph.capture_end()
        raise
    graph.capture_end()


@contextmanager
def _capture_advice() -> Iterator[None]:
    """Say what to do where work that runs cannot be recorded."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ModelError(
            "this network cannot be recorded as a CUDA graph; "
            "use --gpu.no-graphs or --simulator reference"
        ) from error


class CapturedGraph(Generic[T]):
    """Some work on a stream, whose tensors all stay in place, and what it gives.

    The work is warmed up first, so that libraries have chosen and allocated. Any other thread
    may compute meanwhile, but not record.
    """

    def __init__(
        self,
        work: Callable[[], T],
        stream: torch.cuda.Stream,
        warm_ups: int,
        tf32: bool | None = None,
    ) -> None:
        self.stream = stream
        self._work = work  # holds the tensors that the graph reads
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream), _CAPTURING, rounding(tf32):
            for _ in range(warm_ups):
                work()
            stream.synchronize()
            with _capture_advice(), _capturing(self._graph):
                self.result = work()

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
