"""Tiny networks, data and fleets, so that a whole run takes a blink."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedtiny import methods
from fedtiny.config import RunConfig, from_dict, resolve_run
from fedtiny.data import DataSet, from_arrays
from fedtiny.data.transforms import Preparation
from fedtiny.devices.device_data import DeviceData, shard
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import RngKey
from fedtiny.devices.executors import SerialExecutor, Task
from fedtiny.devices.simulator import Simulator
from fedtiny.devices.torch_engine import TorchEngine
from fedtiny.devices.torch_public import TorchPublicSet
from fedtiny.errors import ModelError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.method import Method
from fedtiny.federation.rounds import federate
from fedtiny.federation.server import Server
from fedtiny.graph.ir import Graph
from fedtiny.graph.trace import trace
from fedtiny.models import ParamSpec, analyze
from fedtiny.models.synaptic_flow import SynapticFlow
from fedtiny.randomness import SERVER
from fedtiny.sparse.flow import LayerFlow
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

CLASSES = 3
SIDE = 8
DEFAULTS = {
    "density": 0.2,
    "train": {"local_epochs": 1, "batch_size": 4},
    "selection": {"pool_size": 4, "development_ratio": 0.5},
    "pruning": {"delta_r": 1, "r_stop": 8, "iterations": 4},
}


class Smooth(nn.Module):
    """No kinks, so that small steps tell the curvature: 3 x 2 and 2 x 3 prunable weights."""

    def __init__(self):
        super().__init__()
        self.stem, self.one = nn.Linear(SIDE * SIDE, 2), nn.Linear(2, 3)
        self.two, self.head = nn.Linear(3, 2), nn.Linear(2, CLASSES)

    def forward(self, x):
        x = torch.tanh(self.one(torch.tanh(self.stem(x.flatten(1) / 4))))
        return self.head(torch.tanh(self.two(x)))


class TinyNet(nn.Module):
    """Convolution, residual block, two linear layers: 288 + 576 + 64 prunable weights."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.bn0 = nn.BatchNorm2d(4)
        self.conv1 = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.hidden = nn.Linear(8, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn0(self.stem(x)))
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        x = torch.relu(self.hidden(x.mean(dim=(2, 3))))
        return self.head(self.dropout(x))


class PlainNet(nn.Module):
    """No batch norm anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.middle = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.middle(torch.relu(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


def seeded(network: type[nn.Module], *options: object, seed: int = 0) -> nn.Module:
    """A network with fixed first values."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return network(*options)


def settings(**changes: object) -> RunConfig:
    """The config of a quick run; a section is given as a dict of what differs."""
    values = {name: dict(v) if isinstance(v, dict) else v for name, v in DEFAULTS.items()}
    for name, change in changes.items():
        values[name] = values.get(name, {}) | change if isinstance(change, dict) else change
    return resolve_run(from_dict(values))


def images(count: int, seed: int = 0) -> DataSet:
    """Noise, with a stripe whose place tells the class."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, count)
    pixels = draw.integers(0, 128, (count, SIDE, SIDE))
    for image, label in zip(pixels, labels, strict=True):
        image[2 * label : 2 * label + 2] += 120
    return from_arrays((pixels, labels), (pixels[:4], labels[:4]), classes=["a", "b", "c"])


def random_mask(param_spec: ParamSpec, density: float = 0.3, seed: int = 0) -> Mask:
    """A mask that keeps about this share of every layer."""
    draw = np.random.default_rng(seed)
    return Mask(
        param_spec,
        {n: np.flatnonzero(draw.random(s) < density) for n, s in param_spec.sizes.items()},
    )


@dataclass
class Lab:
    """Everything that takes part in a run."""

    config: RunConfig
    data: DataSet
    model: nn.Module
    spec: DeviceSpec
    engine: TorchEngine
    shards: list[DeviceData]
    transport: Simulator
    method: Method
    server: Server
    start: Theta

    @property
    def param_spec(self) -> ParamSpec:
        return self.engine.param_spec

    def theta(self, density: float = 0.3, seed: int = 0) -> Theta:
        """The model's first values under a random mask."""
        return self.start.remasked(random_mask(self.param_spec, density, seed))

    def rng_key(self, device: int = 0, round: int = 0) -> RngKey:
        return RngKey(self.config.seed, round, device)


def lab(
    config: RunConfig | None = None,
    sizes: tuple[int, ...] = (12, 9, 21),
    model: nn.Module | None = None,
    augment: bool = True,
) -> Lab:
    """A fleet of devices with so many samples each, around one small network."""
    config, data = config or settings(), images(sum(sizes))
    model = model or seeded(TinyNet)
    param_spec = analyze(model, data.shape)
    spec = DeviceSpec(config, param_spec, Preparation.of(data, augment), graph_of(model, data))
    engine = TorchEngine(model, spec)
    own = np.split(np.random.default_rng(1).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    ratio = config.selection.development_ratio
    shards = [shard(k, data.train, part, ratio, config.seed) for k, part in enumerate(own)]
    transport = Simulator(SerialExecutor(engine, config.seed), shards, config)
    few = np.arange(6)
    public = TorchPublicSet(engine, DeviceData(SERVER, data.train, few, few), spec.graph)
    server, method = Server(config, transport, engine.theta(), public), methods.create(config)
    method.flow = flow_of(model, data, param_spec)
    return Lab(config, data, model, spec, engine, shards, transport, method, server, server.theta)


def flow_of(model: nn.Module, data: DataSet, param_spec: ParamSpec) -> LayerFlow:
    """What flows through a network; every weight counts as used once."""

    def opened():
        return SynapticFlow(model, data.shape, tuple(param_spec.prunable)).layer_counts

    return LayerFlow(param_spec, dict.fromkeys(param_spec.prunable, 1), opened)


def graph_of(model: nn.Module, data: DataSet) -> Graph | None:
    """The network as native devices take it, if it has that form."""
    try:
        return trace(model, data.shape)
    except ModelError:
        return None


def tasks(bench, *program, devices=None, theta=None, arrays=None) -> list[Task]:
    """The same order to some of a bench's devices, or to all."""
    order = Request("train", "fedtiny", 0, program, theta or bench.theta(), arrays or {})
    return [Task(bench.shards[k], order) for k in devices or range(len(bench.shards))]


def whole_run(bench, rounds=3) -> list[tuple]:
    """What came of each round of a bench's method."""
    return [
        (result.outcome.theta.version, result.outcome.traffic, result.outcome.by_device)
        for result in federate(bench.server, bench.method, rounds)
    ]


def everything(reply: Reply) -> tuple:
    """All that a reply says, so that two can be compared."""
    return (
        (reply.device, reply.samples, reply.metrics),
        reply.theta and (reply.theta.version, reply.theta.mask.version),
        {k: (v.indices.tolist(), v.values.tobytes()) for k, v in reply.gradients.items()},
        {k: (v.dtype.str, v.shape, v.tobytes()) for k, v in reply.arrays.items()},
    )
