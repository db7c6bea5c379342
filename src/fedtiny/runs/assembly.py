"""From a config to everything that takes part in a run."""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedtiny import data as datasets
from fedtiny import methods, models
from fedtiny.config import Config, resolve
from fedtiny.cost import Workload, largest_density, parse_size
from fedtiny.cost.workload import Given
from fedtiny.data import DataSet, Partition
from fedtiny.data.choose import balanced_choice
from fedtiny.data.partition import split as split_over_devices
from fedtiny.devices.crew import Alone, Crew, Job, Workers, can_fork
from fedtiny.devices.engine import Moment
from fedtiny.devices.shard import Shard, shard
from fedtiny.devices.simulator import Simulator
from fedtiny.errors import ConfigError, DataError, FedTinyError, ModelError, RunError
from fedtiny.extras import require
from fedtiny.federation.messages import Request, evaluate
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.randomness import BEFORE_ROUNDS, SERVER, generator
from fedtiny.runs.partition_file import Split

if TYPE_CHECKING:
    from torch import nn

    from fedtiny.devices.torch_engine import TorchEngine

TEST_PART = 500  # images that are tested in one go
OWN = "own:"  # marks the name of a model or data set that came through the Python API


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
        request = Request("evaluate", self.config.method, server.round, (evaluate(),), server.theta)
        sums = {"loss": 0.0, "accuracy": 0.0}
        for reply in self.crew.answers([Job(part, request) for part in self.test]):
            if isinstance(reply, FedTinyError):
                raise reply
            for name in sums:
                sums[name] += reply.metrics[name] * reply.samples
        return {name: total / len(self.data.test) for name, total in sums.items()}

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
) -> Assembly:
    """Load the data, build the model, share the data out and open the door to the devices."""
    asked = settled(config, data, model)
    dataset = load_data(asked, data)
    asked = _within_budget(asked, dataset, model)
    method = methods.create(asked)
    config = method.settle(asked, lambda: _parameters(asked, dataset, model))
    split = share_out(dataset, config) if split is None else _checked(split, dataset)
    replaced = config.model != asked.model
    network = copy.deepcopy(model) if model and not replaced else build_model(config, dataset)
    anatomy = models.dissect(network, dataset.shape)
    _check_outputs(network, dataset)
    method.check(anatomy)
    engine = _engine(network, anatomy, dataset, config)
    shards, test = _shards(dataset, split, config), _test_parts(dataset)
    crew = _crew(engine, anatomy, (*shards, *test), config)
    workload = Workload.of(asked, **_given(asked, dataset, model))
    public = Shard(SERVER, dataset.train, split.public, split.public)
    publics = require("fedtiny.devices.torch_public", extra="torch")
    server = Server(
        config,
        Simulator(crew, shards, config),
        engine.theta(),
        publics.TorchPublicSet(engine, public),
    )
    return Assembly(
        asked, config, dataset, split, network, engine, method, server, crew, test, workload
    )


def settled(config: Config, data: DataSet | None, model: "nn.Module | None") -> Config:
    """The config with nothing left open: presets, processes, and what came through the API."""
    if data is not None:
        config = replace(config, data=replace(config.data, name=OWN + data.name))
    if model is not None:
        config = replace(config, model=OWN + type(model).__name__)
    config = resolve(config)
    workers = config.workers or (min(cores(), config.fleet.devices) if can_fork() else 1)
    threads = config.threads or (1 if can_fork() else cores())
    return replace(config, workers=workers, threads=threads)


def _within_budget(config: Config, data: DataSet, own: "nn.Module | None") -> Config:
    """The config with the largest density that fits its memory budget, if it has one."""
    if config.memory_budget is None:
        return config
    budget = parse_size(config.memory_budget)
    given = _given(config, data, own)
    return replace(config, density=largest_density(config, budget, config.memory_model, **given))


def _given(config: Config, data: DataSet, own: "nn.Module | None") -> Given:
    """What the cost model must know beside the config: costs are those of a device of mean size."""
    samples = len(data.train) // config.fleet.devices
    given: Given = {"shape": data.shape, "classes": len(data.classes), "samples": samples}
    return given if own is None else {**given, "model": own}


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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


def _crew(
    engine: "TorchEngine", anatomy: models.Anatomy, shards: Sequence[Shard], config: Config
) -> Crew:
    workers = config.workers or 1
    if workers == 1:
        return Alone(engine, config.seed)
    return Workers(engine, anatomy, shards, config.seed, workers)


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


def share_out(data: DataSet, config: Config) -> Split:
    """Hold the public one-shot set back, and spread the rest over the devices."""
    labels, fleet = data.train.labels, config.fleet
    public = balanced_choice(
        labels, config.data.n_shots * len(data.classes), generator(config.seed, "public")
    )
    rest = np.setdiff1d(np.arange(len(labels)), public)
    if fleet.devices * fleet.min_samples > len(rest):
        raise DataError(
            f"{fleet.devices} devices with at least {fleet.min_samples} samples each need more "
            f"than the {len(rest)} training images there are; lower --fleet.devices or "
            "--fleet.min-samples"
        )
    partition = split_over_devices(
        fleet.partition,
        labels[rest],
        fleet.devices,
        alpha=fleet.alpha,
        shards_per_device=fleet.shards_per_device,
        seed=config.seed,
        minimum=fleet.min_samples,
    )
    devices = Partition(tuple(rest[own] for own in partition.devices))
    return Split(public, devices, devices.table(labels, len(data.classes)))


def _checked(split: Split, data: DataSet) -> Split:
    """The split of a run that goes on, which must fit the data it is given."""
    indices, _ = split.devices.flat()
    fits = max(indices.max(), split.public.max(initial=0)) < len(data.train)
    if not fits or not np.array_equal(
        split.devices.table(data.train.labels, len(data.classes)), split.table
    ):
        raise RunError(
            f"the data set '{data.name}' is not the one that this run was started with; "
            "give it the same images and labels in the same order"
        )
    return split


def _check_outputs(model: "nn.Module", data: DataSet) -> None:
    torch = require("torch", extra="torch")
    with torch.no_grad():
        outputs = model.eval()(torch.zeros(1, *data.shape))
    if tuple(outputs.shape) != (1, len(data.classes)):
        raise ModelError(
            f"the model gives outputs of shape {tuple(outputs.shape[1:])} for an image, but the "
            f"data has {len(data.classes)} classes"
        )


def _parameters(config: Config, data: DataSet, own: "nn.Module | None") -> int:
    network = own or build_model(config, data)
    return sum(parameter.numel() for parameter in network.parameters())


def build_model(config: Config, data: DataSet) -> "nn.Module":
    """The network that a config names, for this data set."""
    if config.model.startswith(OWN):
        raise ConfigError(
            f"this run used a model of your own ({config.model.removeprefix(OWN)}); "
            "continue it from Python with fedtiny.resume(path, model=...)"
        )
    width = config.width
    if config.model == "small" and config.parameters is not None:
        small = require("fedtiny.models.small", extra="torch")
        width = small.width_for(config.parameters, data.shape[0], len(data.classes))
    return models.build(config.model, data.shape, len(data.classes), width=width, seed=config.seed)


def _engine(
    model: "nn.Module", anatomy: models.Anatomy, data: DataSet, config: Config
) -> "TorchEngine":
    augment = require("fedtiny.data.augment", extra="torch")
    engines = require("fedtiny.devices.torch_engine", extra="torch")
    transform = augment.Transform.of(data, config.data.augment, config.data.cutout)
    engine: TorchEngine = engines.TorchEngine(model, anatomy, transform, config.train)
    return engine
