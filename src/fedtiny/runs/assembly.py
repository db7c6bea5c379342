"""From a config to everything that takes part in a run."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fedtiny import data as datasets
from fedtiny import methods, models
from fedtiny.config import Config
from fedtiny.cost import Workload
from fedtiny.data import DataSet
from fedtiny.devices.crew import Alone, Crew, Job, Workers
from fedtiny.devices.engine import Engine, Moment
from fedtiny.devices.outfit import Outfit
from fedtiny.devices.remote import Remote
from fedtiny.devices.shard import Shard, shard
from fedtiny.devices.simulator import Simulator
from fedtiny.errors import ConfigError, FedTinyError, ModelError
from fedtiny.extras import require
from fedtiny.federation.door import Door
from fedtiny.federation.messages import Request, evaluate
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.randomness import BEFORE_ROUNDS, SERVER
from fedtiny.runs import backend as backends
from fedtiny.runs.fleet import Fleet, Premises
from fedtiny.runs.settle import OWN, cost_inputs, has_gpu, settled, within_budget
from fedtiny.runs.split import Split, checked, share_out

if TYPE_CHECKING:
    from torch import nn

    from fedtiny.devices.torch_engine import TorchEngine

TEST_PART = 500  # images that are tested in one go


@dataclass
class Assembly:
    """A run that is ready to start or to be put where it stopped.

    `asked` is the config that was asked for and is saved; `config` is how the method runs it.
    """

    asked: Config
    config: Config
    data: DataSet
    split: Split
    model: "nn.Module"
    engine: "TorchEngine"
    method: Method
    server: Server
    crew: Crew
    test: tuple[Shard, ...]
    workload: Workload

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy of the global model on the test set."""
        server = self.server
        if not self.test:
            return self._evaluated_by_devices()
        request = Request("evaluate", self.config.method, server.round, (evaluate(),), server.theta)
        sums = {"loss": 0.0, "accuracy": 0.0}
        for reply in self.crew.answers([Job(part, request) for part in self.test]):
            if isinstance(reply, FedTinyError):
                raise reply
            for name in sums:
                sums[name] += reply.metrics[name] * reply.samples
        return {name: total / len(self.data.test) for name, total in sums.items()}

    def _evaluated_by_devices(self) -> dict[str, float]:
        """The mean over the devices' own data, by samples, where the server has no test set."""
        outcome = self.server.ask("evaluate", (evaluate(),))
        if not outcome.answered:
            raise FedTinyError("no device was there to measure the model; continue the run later")
        return {name: outcome.metrics[name] for name in ("loss", "accuracy")}

    def pretrain(self) -> None:
        """Train the dense model on the server's public one-shot set; every method starts here."""
        public = Shard(SERVER, self.data.train, self.split.public, self.split.public)
        moment = Moment(self.config.seed, BEFORE_ROUNDS, SERVER)
        self.engine.train(public, moment, epochs=self.config.train.pretrain_epochs)
        self.server.theta = self.engine.theta()


def assemble(
    config: Config,
    *,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    split: Split | None = None,
    fleet: Fleet | None = None,
) -> Assembly:
    """Load the data, build the model, share the data out and open the door to the devices.

    Devices are simulated, unless a fleet of real ones is given.
    """
    asked = settled(config, data, model)
    dataset = load_data(asked, data)
    planning = backends.plans_memory(asked)
    asked = asked if planning else within_budget(asked, dataset, model)
    method = methods.create(asked)
    config = method.settle(asked, lambda: parameters(asked, dataset, model))
    sharing = fleet.share_out if fleet else share_out
    split = sharing(dataset, config) if split is None else checked(split, dataset)
    replaced = config.model != asked.model
    network = copy.deepcopy(model) if model and not replaced else build_model(config, dataset)
    anatomy = models.dissect(network, dataset.shape)
    _check_outputs(network, dataset)
    method.check(anatomy)
    backend = backends.choose(config, method, network, dataset)
    asked, config = (replace(c, device_backend=backend) for c in (asked, config))
    if planning:
        asked, config = _planned(asked, config, anatomy, network, dataset)
    engine = _engine(network, anatomy, dataset, config)
    shards = () if fleet else _shards(dataset, split, config)
    test = _test_parts(dataset) if fleet is None or fleet.tested_here else ()
    if config.simulator == "gpu":
        crew = _gpu_crew(engine, anatomy, dataset, config)
    elif backend == "native":
        outfit = backends.outfit(config, anatomy, network, dataset)
        crew = _native_crew(outfit, (*shards, *test), config)
    else:
        crew = _crew(engine, anatomy, (*shards, *test), config)
    door: Door = Simulator(crew, shards, config)
    if fleet is not None:
        description = backends.describe(network, dataset) if backend == "native" else None
        door = fleet.open_door(Premises(config, dataset, split, anatomy, description))
    samples = int(split.table.sum()) // len(split.table) if fleet is None else fleet.samples
    given = cost_inputs(asked, dataset, model) | {"samples": samples}
    workload = Workload.of(asked, **given)
    public = Shard(SERVER, dataset.train, split.public, split.public)
    publics = require("fedtiny.devices.torch_public", extra="torch")
    server = Server(config, door, engine.theta(), publics.TorchPublicSet(engine, public))
    return Assembly(
        asked, config, dataset, split, network, engine, method, server, crew, test, workload
    )


@contextmanager
def computing_on(threads: int) -> Iterator[None]:
    """Let PyTorch use so many threads for a while."""
    torch = require("torch", extra="torch")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shards(data: DataSet, split: Split, config: Config) -> tuple[Shard, ...]:
    ratio = config.selection.development_ratio
    return tuple(
        shard(device, data.train, own, ratio, config.seed)
        for device, own in enumerate(split.devices.devices)
    )


def _test_parts(data: DataSet) -> tuple[Shard, ...]:
    """The test set in parts of fixed size, so that the crew can share them at no one's cost."""
    starts = range(0, len(data.test), TEST_PART)
    parts = (np.arange(start, min(start + TEST_PART, len(data.test))) for start in starts)
    return tuple(
        Shard(SERVER - 1 - number, data.test, part, part) for number, part in enumerate(parts)
    )


def _crew(engine: Engine, anatomy: models.Anatomy, shards: Sequence[Shard], config: Config) -> Crew:
    workers = config.workers or 1
    if workers == 1:
        return Alone(engine, config.seed)
    return Workers(engine, anatomy, shards, config.seed, workers)


def _planned(
    asked: Config, config: Config, anatomy: models.Anatomy, network: "nn.Module", data: DataSet
) -> tuple[Config, Config]:
    """Both configs, with devices that fit their memory budget."""
    if config.device_backend == "torch":
        raise ConfigError(
            "--memory-model device plans the memory of native devices, which this run has none of; "
            "with --device-backend torch it chooses the density"
        )
    fitting = backends.fitted(config, anatomy, network, data)
    planned = replace(
        asked, train=fitting.train, selection=fitting.selection, device=fitting.device
    )
    return planned, fitting


def _native_crew(outfit: Outfit, shards: Sequence[Shard], config: Config) -> Crew:
    """Native devices in these processes, or in those of another Python."""
    if config.device.python is None:
        return _crew(outfit.engine(), outfit.anatomy, shards, config)
    return Remote(outfit, shards, python=config.device.python, count=config.workers or 1)


def _gpu_crew(
    engine: "TorchEngine", anatomy: models.Anatomy, data: DataSet, config: Config
) -> Crew:
    """Lanes on the GPU; what the server computes by itself goes there too."""
    torch = require("torch", extra="torch")
    lanes = require("fedtiny.devices.gpu.lanes", extra="torch")
    recipe = lanes.Recipe(
        model=copy.deepcopy(engine.model),
        anatomy=anatomy,
        preparation=engine.transform,
        train=config.train,
        gpu=config.gpu,
        seed=config.seed,
        devices=config.fleet.devices,
        training_set=data.train,
        test_set=data.test,
    )
    kind, count = ("cuda", torch.cuda.device_count()) if has_gpu() else ("cpu", 1)
    if kind == "cuda" and (config.gpu.cards or 0) > count:
        raise ConfigError(f"--gpu.cards is {config.gpu.cards}, but this machine has {count}")
    numbers = range(config.gpu.cards or count)
    cards = [torch.device(kind, number if kind == "cuda" else 0) for number in numbers]
    crew: Crew = lanes.Lanes(recipe, cards)
    engine.to(cards[0])
    return crew


def load_data(config: Config, own: DataSet | None = None) -> DataSet:
    """The run's data set, at a size that its model takes, limited as asked."""
    if own is None and config.data.name.startswith(OWN):
        raise ConfigError(
            f"this run used a data set of your own ({config.data.name.removeprefix(OWN)}); "
            "continue it from Python with fedtiny.resume(path, data=...)"
        )
    data = own or datasets.load(config.data.name, config.data.root)
    smallest = models.KINDS[config.model].smallest_input if config.model in models.KINDS else 1
    if min(data.shape[1:]) < smallest:
        data = data.resized(smallest)
    return data.limited(config.data.limit_train, config.data.limit_test, config.seed)


def _check_outputs(model: "nn.Module", data: DataSet) -> None:
    torch = require("torch", extra="torch")
    with torch.no_grad():
        outputs = model.eval()(torch.zeros(1, *data.shape))
    if tuple(outputs.shape) != (1, len(data.classes)):
        raise ModelError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])} for an image, but the "
            f"data has {len(data.classes)} classes"
        )


def parameters(config: Config, data: DataSet, own: "nn.Module | None" = None) -> int:
    """Number of parameters of the network that a config names, or of one's own."""
    network = own or build_model(config, data)
    return sum(parameter.numel() for parameter in network.parameters())


class Images(Protocol):
    """What a network must know of the images it is for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""


def build_model(config: Config, data: Images) -> "nn.Module":
    """The network that a config names, for such images."""
    if config.model.startswith(OWN):
        raise ConfigError(
            f"this run used a model of your own ({config.model.removeprefix(OWN)}); "
            "continue it from Python with fedtiny.resume(path, model=...)"
        )
    width = model_width(config, data)
    return models.build(config.model, data.shape, len(data.classes), width=width, seed=config.seed)


def model_width(config: Config, data: Images) -> int | None:
    """The width of the network that a config names, or None for its usual one."""
    if config.model != "small" or config.parameters is None:
        return config.width
    small = require("fedtiny.models.small", extra="torch")
    width: int = small.width_for(config.parameters, data.shape[0], len(data.classes))
    return width


def _engine(
    model: "nn.Module", anatomy: models.Anatomy, data: DataSet, config: Config
) -> "TorchEngine":
    augment = require("fedtiny.data.augment", extra="torch")
    engines = require("fedtiny.devices.torch_engine", extra="torch")
    transform = augment.Transform.of(data, config.data.augment, config.data.cutout)
    engine: TorchEngine = engines.TorchEngine(model, anatomy, transform, config.train)
    return engine
