"""Local training of many devices at once: they share a mask, so one launch serves all."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray

from fedtiny.devices import batches
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import RngKey, Rule
from fedtiny.devices.gpu.image_store import COLUMNS, Images
from fedtiny.devices.gpu.kernels import CapturedGraph, on_stream
from fedtiny.devices.gpu.network import fetched
from fedtiny.devices.gpu.sparse.arguments import Batch, address
from fedtiny.devices.gpu.sparse.compiler import compile_kernels
from fedtiny.devices.gpu.sparse.head import Step
from fedtiny.devices.gpu.sparse.kernel import Kernels
from fedtiny.devices.gpu.sparse.launches import SMALL, Launch
from fedtiny.devices.gpu.sparse.network import SparseNetwork
from fedtiny.sparse.theta import Theta

CUDA = Path(__file__).with_name("cuda")
SOURCES = (
    *("words", "tiles", "convolution", "tensor_cores"),
    *("norm", "elementwise", "linear", "batch", "update"),
)
PLANNED = 64  # steps whose batches are planned while the GPU takes those before
_BUILDING = Lock()
Call = Callable[[], None]
Repeat = Callable[[int], None]


@dataclass(frozen=True)
class Training:
    """What one device is to train on."""

    shard: DeviceData
    rng_key: RngKey
    epochs: int

    def steps(self, batch: int) -> int:
        """How many steps it takes."""
        return self.epochs * (len(self.shard) // batch)


@dataclass(frozen=True)
class Trained:
    """What came of it: the values of a theta, and the mean loss."""

    vector: NDArray[np.float32]
    loss: float


class Trainer:
    """Trains devices from one theta, as many as a network has room for at a time.

    The devices with the most steps come first. Those that are done drop out of the launch, so a
    step costs what the devices that still train cost; it is recorded once for each number of them.
    """

    def __init__(
        self, network: SparseNetwork, images: Images, stream: torch.cuda.Stream | None, graphs: bool
    ) -> None:
        self.network = network
        self.images = images
        self.stream = stream
        self.graphs = graphs and stream is not None
        plan = network.plan
        shape = (network.devices, PLANNED, plan.batch, COLUMNS)
        self.plan = torch.zeros(shape, dtype=torch.int32, device=network.device)
        self._kernels: Kernels | None = None
        self._steps: dict[int, Repeat] = {}

    def train(self, theta: Theta, trainings: Sequence[Training], rule: Rule) -> list[Trained]:
        """What comes of each training from this theta."""
        found: dict[int, Trained] = {}
        size, batch = self.network.devices, self.network.plan.batch
        order = sorted(range(len(trainings)), key=lambda i: -trainings[i].steps(batch))
        with on_stream(self.network.device, self.stream):
            for start in range(0, len(order), size):
                part = order[start : start + size]
                done = self._side_by_side(theta, [trainings[i] for i in part], rule)
                found |= dict(zip(part, done, strict=True))
        return [found[i] for i in range(len(trainings))]

    def _side_by_side(
        self, theta: Theta, trainings: Sequence[Training], rule: Rule
    ) -> list[Trained]:
        """Train devices in the order of their steps, the most first."""
        network = self.network
        if network.use(theta.mask):
            self._forget()
        network.load(torch.from_numpy(theta.vector.copy()).to(network.device), rule)
        network.set_keys([batches.dropout_seed(t.rng_key) for t in trainings])
        self._bound(network.spread, len(trainings))()
        steps = [t.steps(network.plan.batch) for t in trainings]
        plans = [self._planned(t) for t in trainings]
        for first in range(0, max(steps), PLANNED):
            self._lay_down(plans, [min(PLANNED, max(0, n - first)) for n in steps])
            last = min(first + PLANNED, max(steps))
            active = (sum(n > step for n in steps) for step in range(first, last))
            for count, same in groupby(active):
                self._step(count)(len([*same]))
        vectors = fetched(network.vectors(len(trainings))).numpy()
        losses = network.losses.cpu().numpy().mean(1).tolist()
        return [
            Trained(vector.copy(), loss / max(1, n))
            for vector, loss, n in zip(vectors, losses, steps, strict=False)
        ]

    def _planned(self, training: Training) -> Iterator[NDArray[np.int32]]:
        """The batches of a training, one after the other, planned an epoch at a time."""
        batch = self.network.plan.batch
        for samples, draws in batches.training_epochs(
            training.shard,
            training.rng_key,
            self.images.preparation,
            epochs=training.epochs,
            most=batch,
        ):
            planned = self.images.plan(samples, draws)
            yield from planned.reshape(-1, batch, COLUMNS)

    def _lay_down(
        self, plans: Sequence[Iterator[NDArray[np.int32]]], counts: Sequence[int]
    ) -> None:
        """Bring the next batches of every device to where steps look for them.

        Page-locked memory is not used again before it is copied, since torch's allocator knows.
        """
        cuda = self.plan.is_cuda
        held = torch.zeros(self.plan.shape, dtype=torch.int32, pin_memory=cuda)
        rows = held.numpy()
        for number, (plan, steps) in enumerate(zip(plans, counts, strict=True)):
            for step in range(steps):
                rows[number, step] = next(plan)
        self.plan.copy_(held, non_blocking=cuda)
        self.network.next.zero_()

    def _step(self, active: int) -> Repeat:
        """A step of the first so many devices, taken as often as it is told."""
        if active not in self._steps:
            self._steps[active] = self._made(active)
        return self._steps[active]

    def _made(self, active: int) -> Repeat:
        network = self.network
        before = (self._batch, *network.there, *network.head, *network.back)
        calls = [self._call(step, active) for step in before]
        calls.append(self._bound(network.tick, 1))
        calls += [self._bound(launch, active) for launch in network.updates]

        def step() -> None:
            for call in calls:
                call()

        def repeat(times: int) -> None:
            for _ in range(times):
                step()

        return self._recorded(step) if self.graphs else repeat

    def _recorded(self, step: Call) -> Repeat:
        """The step as one launch; what is trained is put back, since recording warms up."""
        assert self.stream is not None
        network = self.network
        kept = (
            network.values,
            network.first,
            network.second,
            network.losses,
            network.next,
            network.exact,
            network.rates,
            network.keys,
        )
        before = [tensor.clone() for tensor in kept]
        graph = CapturedGraph(step, self.stream, 1)
        for tensor, value in zip(kept, before, strict=True):
            tensor.copy_(value)
        self._bound(network.spread, network.devices)()
        return graph.repeat

    @property
    def _batch(self) -> Launch:
        """Fetches the batches of a step."""
        network, images = self.network, self.images
        padded = images.pixels.shape[1:3]
        args = Batch(
            *map(address, (images.pixels, images.labels, self.plan, network.next)),
            *(PLANNED, network.plan.batch, images.pixels.shape[3], images.height, images.width),
            *(*padded, images.preparation.cutout),
            *map(address, (images.scale, images.shift, network.image_tensor, network.labels)),
        )
        pixel = "unsigned char" if images.pixels.dtype == torch.uint8 else "float"
        grid = (-(-images.height * images.width // SMALL), network.plan.images)
        body = f"fetched<{network.plan.word}, {pixel}>(args);"
        return Launch("fetched", grid, SMALL, args, body=body)

    def _call(self, step: Step, devices: int) -> Call:
        return self._bound(step, devices) if isinstance(step, Launch) else partial(step, devices)

    def _bound(self, launch: Launch, devices: int) -> Call:
        names = self._names
        kernel = self.kernels[names[launch.body] if launch.body else launch.kernel]
        return kernel.bind(launch.shape(devices), launch.threads, launch.shared, launch.args)

    def _forget(self) -> None:
        """Buffers have moved: what knows their addresses is void."""
        self._steps.clear()
        self._kernels = None

    @property
    def _names(self) -> dict[str, str]:
        """The kernels that are made for this network's launches, by what they call."""
        bodies: dict[str, str] = {}
        for launch in (self._batch, *self.network.there, *self.network.back):
            if launch.body and launch.body not in bodies:
                bodies[launch.body] = f"{launch.kernel}_{len(bodies)}"
        return bodies

    @property
    def kernels(self) -> Kernels:
        """The kernels of this network, built when they are needed."""
        if self._kernels is None:
            with _BUILDING:  # trainers side by side want the same: who comes second finds it
                self._kernels = compile_kernels(self.source(), self.network.device)
        return self._kernels

    def source(self) -> str:
        """The kernels and what of them this network needs."""
        arguments = {"convolve": "Conv", "gradients": "Conv", "fetched": "Batch"}
        lines = [
            f'#line 1 "{name}.cuh"\n' + (CUDA / f"{name}.cuh").read_text(encoding="utf-8")
            for name in SOURCES
        ]
        names = self._names
        for launch in (self._batch, *self.network.there, *self.network.back):
            if launch.body and names.pop(launch.body, None) is not None:
                kind = arguments.get(launch.kernel, "Plane")
                name = self._names[launch.body]
                bounds = f"{launch.threads}, {launch.blocks}"
                lines.append(f"KERNEL({name}, {kind}, {bounds}) {{ {launch.body} }}")
        return "\n".join(lines) + "\n"
