"""An executor that plays several devices at once on one GPU."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, cast

import torch
from torch import nn

from fedtiny.data import ImageSet
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import Engine
from fedtiny.devices.executors import reply_or_error
from fedtiny.devices.gpu.engine import GpuEngine, Shared
from fedtiny.devices.gpu.image_store import ImageStore
from fedtiny.devices.gpu.joint_training import JointTraining
from fedtiny.devices.gpu.kernels import choose_kernels, on_stream
from fedtiny.devices.gpu.layout import Layout
from fedtiny.devices.gpu.network import Network
from fedtiny.devices.gpu.sparse.choice import plan_for
from fedtiny.devices.gpu.sparse.network import SparseNetwork
from fedtiny.devices.gpu.sparse.plan import Plan
from fedtiny.devices.gpu.sparse.trainer import Trained, Trainer
from fedtiny.devices.gpu.step import CompiledLoss
from fedtiny.devices.gpu.trained_engine import TrainedEngine
from fedtiny.devices.workers import Task
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply
from fedtiny.federation.verbs import Train
from fedtiny.process import launch
from fedtiny.sparse.theta import Theta

USUAL_LANES = 4
USUAL_STREAMS = 1  # of a card if kernels are sparse: each trains many devices at once
ROOM = 20  # devices of one launch; more go in turns
WINDOW = 4  # jobs a lane that are open at a time at least; their replies wait for their turn
HELD = 2 << 30  # bytes that waiting replies may take; as many jobs more are open at a time
SPARE = 0.8  # of the free memory may be filled with further lanes


class StreamExecutor:
    """Several engines on a card, each with a thread and a stream; replies in order of jobs.

    The first question opens the lanes; the memory that the first lane took says how many fit.
    Longer jobs are begun first and whoever is free takes the next, so no lane is left with a long
    tail. The outcome of a job does not depend on its lane. The first of the image sets is the one
    that devices train on.

    With sparse kernels (which `spec.graph` is for) the devices that begin with a training from
    the same theta are trained together first; lanes do the rest of their programs.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: DeviceSpec,
        images: Sequence[ImageSet],
        device: torch.device,
    ) -> None:
        self.config = spec.config
        self.card = Card(model, spec, images, device)
        self.count = 0
        self._engines: SimpleQueue[GpuEngine] = SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None
        self._kernels = choose_kernels(self.config.gpu, self)
        graph = spec.graph if self.config.gpu.kernels != "dense" else None
        opening = self._open_trainers
        self._joint = JointTraining(self.config, graph, images[0], opening) if graph else None
        self._used: set[str] = set()

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        if not tasks:
            return
        theta = tasks[0].request.theta
        if self._threads is None:
            self._open(theta)
        window = max(1, WINDOW * self.count, HELD // max(1, theta.vector.nbytes))
        for start in range(0, len(tasks), window):
            part = tasks[start : start + window]
            yield from self._side_by_side(part, self._trained(part, theta))

    def _trained(self, tasks: Sequence[Task], theta: Theta) -> dict[int, Trained]:
        """What came of the trainings that are done together, by number of the task."""
        found: dict[int, Trained] = {}
        if self._joint and self._threads:
            with self._memory_advice(together=True):
                found = self._joint.train(tasks, theta, self._threads)
        for number, task in enumerate(tasks):
            trainings = [verb for verb in task.request.program if isinstance(verb, Train)]
            self._used |= {"sparse"} if number in found else set()
            self._used |= {"dense"} if len(trainings) > (number in found) else set()
        return found

    def _side_by_side(
        self, tasks: Sequence[Task], trained: Mapping[int, Trained]
    ) -> Iterator[Reply | FedTinyError]:
        assert self._threads is not None
        longest_first = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].shard))
        futures: dict[int, Future[Reply | FedTinyError]] = {
            i: self._threads.submit(self._do, tasks[i], trained.get(i)) for i in longest_first
        }
        return (futures.pop(i).result() for i in range(len(tasks)))

    def _do(self, task: Task, trained: Trained | None = None) -> Reply | FedTinyError:
        lane = self._engines.get()
        engine = lane if trained is None else cast(Engine, TrainedEngine(lane, trained))
        try:
            with self._memory_advice(), lane.on_its_stream():
                return reply_or_error(engine, task, self.config.seed)
        finally:
            self._engines.put(lane)

    def _open(self, theta: Theta) -> None:
        if not self._kernels.alive:  # it was closed before
            self._kernels = choose_kernels(self.config.gpu, self)
        lanes, trains = self._each(USUAL_LANES), not (self._joint and self._joint.takes(theta.mask))
        with self._memory_advice():
            engines = self.card.engines(theta, lanes, trains=trains)
        for engine in engines:
            self._engines.put(engine)
        self.count = len(engines)
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="lane")

    def _open_trainers(self) -> list[Trainer]:
        """Trainers on the card, with room for the devices of a round or for their turns."""
        streams = self._each(USUAL_STREAMS)
        own = -(-self.config.fleet.asked // launch().size)
        return self.card.trainers(streams, min(ROOM, -(-own // streams)))

    def _each(self, usual: int) -> int:
        """Streams: as many as asked for or usual, no more than this process has devices."""
        own, lanes = -(-self.config.fleet.devices // launch().size), self.config.gpu.lanes
        return min(usual if lanes is None else lanes, own)

    @contextmanager
    def _memory_advice(self, *, together: bool = False) -> Iterator[None]:
        """Say what to do where a card's memory does not suffice."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            advice = "many devices in one launch; use --gpu.kernels dense"
            if not together:
                advice = self._lanes_advice()
            raise FedTinyError(f"the GPU's memory is full with {advice}") from error

    def _lanes_advice(self) -> str:
        lanes = self.card.lanes
        if lanes > 1:
            return f"{lanes} devices side by side; take fewer with --gpu.lanes"
        return "one device at a time; take a smaller network or --simulator reference"

    def account(self) -> dict[str, Any]:
        streams = len(self._joint.trainers) if self._joint else 0
        return {
            "simulator": "gpu",
            "cards": [self.card.name],
            "kernels": sorted(self._used),
            "lanes": self.count,
            **({"streams": streams} if streams else {}),
            "gpu_memory": self.card.max_memory(),
        }

    def close(self) -> None:
        """End the threads, and give back what the lanes held: other runs may follow."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._threads, self._engines, self.count = None, SimpleQueue(), 0
        if self._joint:
            self._joint.trainers.clear()
        self._kernels()
        self.card.close()


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
        self.shared: Shared | None = None
        self.cuda = device.type == "cuda"
        self.dtype = torch.bfloat16 if self.gpu.precision == "bf16" else torch.float32

    @property
    def name(self) -> str:
        """What the maker calls it."""
        return torch.cuda.get_device_name(self.device) if self.cuda else "cpu"

    def engines(self, theta: Theta, count: int, *, trains: bool) -> list[GpuEngine]:
        """So many, or as many as fit; the first one shows what one takes."""
        if self.cuda:
            torch.cuda.init()  # nothing may have used the card yet
            torch.cuda.reset_peak_memory_stats(self.device)
        self.lanes = 1
        self.shared, before = self._shared(), self._free()
        first = self._engine(self.shared, theta, trains)
        each = max(1, before - self._free())
        fitting = 1 + int(SPARE * self._free() / each) if self.cuda else count
        engines = [first]
        while len(engines) < min(count, fitting):
            self.lanes = len(engines) + 1
            engines.append(self._engine(self.shared, theta, trains))
        return engines

    def trainers(self, count: int, room: int) -> list[Trainer]:
        """So many trainers at the kept weights, each with room for so many devices."""
        config, spec = self.spec.config, self.spec
        assert spec.graph is not None
        plan = plan_for(
            *(self.model, spec.param_spec, spec.graph, self.device),
            batch=config.train.batch_size,
            precision=self.gpu.precision,
        )
        return [self._trainer(plan, room) for _ in range(count)]

    def _trainer(self, plan: Plan, room: int) -> Trainer:
        assert self.shared is not None
        stream = torch.cuda.Stream(self.device) if self.cuda else None
        adam = self.spec.config.train.optimizer == "adam"
        with on_stream(self.device, stream):
            network = SparseNetwork(plan, room, self.device, adam=adam)
            images = self.shared.image_store[self.images[0]]
            return Trainer(network, images, stream, self.gpu.graphs)

    def _shared(self) -> Shared:
        train = self.spec.config.train
        kinds = (False, True) if train.freeze_bn < 1 else (False,)
        compiled = kinds if self.gpu.compile and self.cuda else ()
        return Shared(
            ImageStore(self.images, self.spec.preparation, self.device, self.gpu.channels_last),
            train,
            {kind: CompiledLoss(self.model, self.dtype, freeze_bn=kind) for kind in compiled},
            self.spec.config.rounds,
        )

    def _engine(self, shared: Shared, theta: Theta, trains: bool) -> GpuEngine:
        layout = Layout.of(self.model, self.spec.param_spec, self.gpu.channels_last)
        stream = torch.cuda.Stream(self.device) if self.cuda else None
        network = Network(self.model, layout, self.device, self.dtype)
        engine = GpuEngine(network, shared, stream, self.gpu.graphs)
        if self.cuda:
            torch.cuda.synchronize(self.device)  # images and network are there for every stream
        with engine.on_its_stream():
            engine.warm_up(theta, self.images[0], trains=trains)
        return engine

    def _free(self) -> int:
        """Bytes of memory that nobody has taken."""
        return torch.cuda.mem_get_info(self.device)[0] if self.cuda else 0

    def close(self) -> None:
        """Let go of recordings and compiled code, whose number is limited in a process."""
        self.shared = None
        if self.cuda:
            gc.collect()
            torch.cuda.empty_cache()
            getattr(torch._C, "_host_emptyCache", lambda: None)()  # page-locked memory
            if self.gpu.compile:
                torch.compiler.reset()

    def max_memory(self) -> int:
        """The most bytes of the card that were taken at a time."""
        return torch.cuda.max_memory_reserved(self.device) if self.cuda else 0
