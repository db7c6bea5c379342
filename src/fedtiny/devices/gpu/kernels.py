"""Which kernels run: switches of the process, fused functions, work recorded as a CUDA graph."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Condition, Lock
from typing import Any, Generic, TypeVar

import torch
import torch._inductor.config as inductor

from fedtiny.config import GpuConfig
from fedtiny.errors import ModelError

cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
SWITCHES: dict[str, tuple[Any, str]] = {
    "convolutions in TF32": (cudnn, "allow_tf32"),
    "products in TF32": (matmul, "allow_tf32"),
    "deterministic": (cudnn, "deterministic"),
    "timed": (cudnn, "benchmark"),
}
NEWER: dict[str, tuple[Any, str]] = {  # another way to say the first two, in newer versions
    "precision of products": (matmul, "fp32_precision"),
    "precision of convolutions": (getattr(cudnn, "conv", None), "fp32_precision"),
    "precision of recurrent layers": (getattr(cudnn, "rnn", None), "fp32_precision"),
}
Settings = dict[str, Any]
T = TypeVar("T")

_chosen: dict[object, Settings] = {}  # by those who still compute, the latest last
_before: Settings = {}
AHEAD = 4  # replays between two looks; more would fill the launch queue, on which the host spins
_CAPTURING = Lock()


def choose_kernels(config: GpuConfig, owner: object) -> "weakref.finalize[[object], object]":
    """Choose for an owner; calling what is given back undoes it, as does the owner's end.

    The latest choice holds. When all are undone, the switches are as they were before the first.
    """
    if not _chosen:
        _before.clear()
        _before.update(_now())
    tf32 = config.precision == "tf32"  # what bf16 leaves in fp32 is meant to be exact
    settings = {
        "convolutions in TF32": tf32,
        "products in TF32": tf32,
        "deterministic": config.deterministic,
        "timed": False,  # it would time every new shape in every thread
    }
    ticket = object()
    _chosen[ticket] = settings
    _set(settings)
    return weakref.finalize(owner, _undo, ticket)


class Rounding:
    """Whether fp32 kernels may use the tensor cores: switches of the whole process.

    Threads that want the same share them; whoever wants the other waits until they are done.
    """

    def __init__(self) -> None:
        self._free = Condition()
        self._within = 0
        self._tf32 = False
        self._before = (False, False)

    @contextmanager
    def __call__(self, tf32: bool | None) -> Iterator[None]:
        """What is launched within rounds to TF32 or not; None leaves it as it is."""
        if tf32 is None:
            yield
            return
        with self._free:
            self._free.wait_for(lambda: not self._within or self._tf32 == tf32)
            if not self._within:
                self._tf32 = tf32
                self._before = cudnn.allow_tf32, matmul.allow_tf32
                cudnn.allow_tf32 = matmul.allow_tf32 = tf32
            self._within += 1
        try:
            yield
        finally:
            with self._free:
                self._within -= 1
                if not self._within:
                    cudnn.allow_tf32, matmul.allow_tf32 = self._before
                    self._free.notify_all()


rounding = Rounding()


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its operations fused by torch.compile.

    Where kernels are to be deterministic, none is chosen by timing that would add in another
    order, if this version of torch can be told so.
    """
    timeless = cudnn.deterministic and hasattr(inductor, "deterministic")
    options: dict[str, Any] = {"deterministic": True} if timeless else {}
    return torch.compile(function, dynamic=False, fullgraph=True, options=options)


def _undo(ticket: object) -> None:
    latest = next(reversed(_chosen)) is ticket
    del _chosen[ticket]
    if latest:
        _set(next(reversed(_chosen.values()), _before))


def _now() -> Settings:
    """The switches as they are, but for those that this version cannot tell."""
    found = {}
    for name, (where, switch) in (SWITCHES | NEWER).items():
        try:
            found[name] = getattr(where, switch)
        except (AttributeError, RuntimeError):  # torch mends no mixture of old and new ways
            continue
    return found


def _set(settings: Settings) -> None:
    for name, value in settings.items():
        setattr(*(SWITCHES | NEWER)[name], value)


@contextmanager
def on_stream(device: torch.device, stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Everything within is put on a stream of a device, and done when it is left."""
    if stream is None:
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(stream):
        try:
            yield
        finally:
            stream.synchronize()


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
