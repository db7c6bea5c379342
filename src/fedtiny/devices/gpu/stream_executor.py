"""An executor that plays several devices at once on one GPU or more."""

import gc
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import torch
from torch import nn

from fedtiny.data import ImageSet
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.executors import reply_or_error
from fedtiny.devices.gpu.engine import GpuEngine, Shared
from fedtiny.devices.gpu.image_store import ImageStore
from fedtiny.devices.gpu.kernels import choose_kernels
from fedtiny.devices.gpu.layout import Layout
from fedtiny.devices.gpu.network import Network
from fedtiny.devices.gpu.step import CompiledLoss
from fedtiny.devices.workers import Task
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply
from fedtiny.sparse.theta import Theta

USUAL_LANES = 4
WINDOW = 4  # jobs a lane that are open at a time at least; their replies wait for their turn
HELD = 2 << 30  # bytes that waiting replies may take; as many jobs more are open at a time
SPARE = 0.8  # of the free memory may be filled with further lanes


class StreamExecutor:
    """Several engines on each card, each with a thread and a stream; replies in order of jobs.

    The first question opens the lanes; the memory that a card's first lane took says how many
    fit. Longer jobs are begun first and whoever is free takes the next, so no lane is left with
    a long tail. The outcome of a job does not depend on its lane. The first of the image sets is
    the one that devices train on.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: DeviceSpec,
        images: Sequence[ImageSet],
        cards: Sequence[torch.device],
    ) -> None:
        self.config = spec.config
        self.cards = [Card(model, spec, images, device) for device in cards]
        self.count = 0
        self._engines: SimpleQueue[GpuEngine] = SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None
        self._kernels = choose_kernels(self.config.gpu, self)

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        if self._threads is None and tasks:
            self._open(tasks[0].request.theta)
        held = HELD // max(1, tasks[0].request.theta.vector.nbytes) if tasks else 0
        window = max(1, WINDOW * self.count, held)
        for start in range(0, len(tasks), window):
            yield from self._side_by_side(tasks[start : start + window])

    def _side_by_side(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        assert self._threads is not None
        longest_first = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].shard))
        futures: dict[int, Future[Reply | FedTinyError]] = {
            i: self._threads.submit(self._do, tasks[i]) for i in longest_first
        }
        return (futures.pop(i).result() for i in range(len(tasks)))

    def _do(self, task: Task) -> Reply | FedTinyError:
        engine = self._engines.get()
        try:
            with self._memory_advice(), engine.on_its_stream():
                return reply_or_error(engine, task, self.config.seed)
        finally:
            self._engines.put(engine)

    def _open(self, theta: Theta) -> None:
        if not self._kernels.alive:  # it was closed before
            self._kernels = choose_kernels(self.config.gpu, self)
        each = -(-self.config.fleet.devices // len(self.cards))
        lanes = min(USUAL_LANES if self.config.gpu.lanes is None else self.config.gpu.lanes, each)
        with self._memory_advice():
            engines = [engine for card in self.cards for engine in card.engines(theta, lanes)]
        for engine in engines:
            self._engines.put(engine)
        self.count = len(engines)
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="lane")

    @contextmanager
    def _memory_advice(self) -> Iterator[None]:
        """Say what to do where a card's memory does not suffice."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            lanes = max(card.lanes for card in self.cards)
            advice = (
                f"{lanes} devices side by side; take fewer with --gpu.lanes"
                if lanes > 1
                else "one device at a time; take a smaller network or --simulator reference"
            )
            raise FedTinyError(f"the GPU's memory is full with {advice}") from error

    def account(self) -> dict[str, Any]:
        return {
            "simulator": "gpu",
            "cards": [card.name for card in self.cards],
            "lanes": self.count,
            "gpu_memory": max(card.max_memory() for card in self.cards),
        }

    def close(self) -> None:
        """End the threads, and give back what the lanes held: other runs may follow."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._threads, self._engines, self.count = None, SimpleQueue(), 0
        self._kernels()
        for card in self.cards:
            card.close()


class Card:
    """One GPU (or, for tests, the CPU) and what its lanes have in common."""

    def __init__(
        self,
        model: nn.Module,
        spec: DeviceSpec,
        images: Sequence[ImageSet],
        device: torch.device,
    ) -> None:
        self.model = model
        self.spec = spec
        self.gpu = spec.config.gpu
        self.images = images
        self.device = device
        self.lanes = 0  # opened, and the one being opened
        self.cuda = device.type == "cuda"
        self.dtype = torch.bfloat16 if self.gpu.precision == "bf16" else torch.float32

    @property
    def name(self) -> str:
        """What the maker calls it."""
        return torch.cuda.get_device_name(self.device) if self.cuda else "cpu"

    def engines(self, theta: Theta, count: int) -> list[GpuEngine]:
        """So many, or as many as fit; the first one shows what one takes."""
        if self.cuda:
            torch.cuda.init()  # nothing may have used the card yet
            torch.cuda.reset_peak_memory_stats(self.device)
        self.lanes = 1
        shared, before = self._shared(), self._free()
        first = self._engine(shared, theta)
        each = max(1, before - self._free())
        fitting = 1 + int(SPARE * self._free() / each) if self.cuda else count
        engines = [first]
        while len(engines) < min(count, fitting):
            self.lanes = len(engines) + 1
            engines.append(self._engine(shared, theta))
        return engines

    def _shared(self) -> Shared:
        return Shared(
            ImageStore(self.images, self.spec.preparation, self.device, self.gpu.channels_last),
            self.spec.config.train,
            CompiledLoss(self.model, self.dtype) if self.gpu.compile and self.cuda else None,
            self.spec.config.rounds,
        )

    def _engine(self, shared: Shared, theta: Theta) -> GpuEngine:
        layout = Layout.of(self.model, self.spec.param_spec, self.gpu.channels_last)
        stream = torch.cuda.Stream(self.device) if self.cuda else None
        network = Network(self.model, layout, self.device, self.dtype)
        engine = GpuEngine(network, shared, stream, self.gpu.graphs)
        if self.cuda:
            torch.cuda.synchronize(self.device)  # images and network are there for every stream
        with engine.on_its_stream():
            engine.warm_up(theta, self.images[0])
        return engine

    def _free(self) -> int:
        """Bytes of memory that nobody has taken."""
        return torch.cuda.mem_get_info(self.device)[0] if self.cuda else 0

    def close(self) -> None:
        """Let go of recordings and compiled code, whose number is limited in a process."""
        if self.cuda:
            gc.collect()
            torch.cuda.empty_cache()
            getattr(torch._C, "_host_emptyCache", lambda: None)()  # page-locked memory
            if self.gpu.compile:
                torch.compiler.reset()

    def max_memory(self) -> int:
        """The most bytes of the card that were taken at a time."""
        return torch.cuda.max_memory_reserved(self.device) if self.cuda else 0
