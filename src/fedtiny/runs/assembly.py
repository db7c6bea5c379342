"""From a config to everything that takes part in a run."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from fedtiny import methods, models
from fedtiny.config import Config
from fedtiny.cost import Workload
from fedtiny.data import DataSet
from fedtiny.devices.device_data import DeviceData, shard
from fedtiny.devices.engine import RngKey
from fedtiny.devices.executors import Executor, Task
from fedtiny.devices.simulator import Simulator
from fedtiny.errors import FedTinyError
from fedtiny.extras import require
from fedtiny.federation.messages import Request, evaluate
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Transport
from fedtiny.models import Traced
from fedtiny.randomness import BEFORE_ROUNDS, SERVER
from fedtiny.runs import backend as backends
from fedtiny.runs.executors import executor_for
from fedtiny.runs.fleet import Fleet, Premises
from fedtiny.runs.inputs import (
    build_model,
    check_outputs,
    check_trainable,
    fitting,
    load_images,
    parameters,
)
from fedtiny.runs.resolve import cost_inputs, resolved, within_budget
from fedtiny.runs.split import Split, checked, sealed, share_out

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
    executor: Executor
    test: tuple[DeviceData, ...]
    workload: Workload
    graph: Traced

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy of the global model on the test set."""
        server = self.server
        if not self.test:
            return self._evaluated_by_devices()
        request = Request("evaluate", self.config.method, server.round, (evaluate(),), server.theta)
        sums = {"loss": 0.0, "accuracy": 0.0}
        for reply in self.executor.answers([Task(part, request) for part in self.test]):
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
        public = _public_shard(self.data, self.split)
        rng_key = RngKey(self.config.seed, BEFORE_ROUNDS, SERVER)
        self.engine.train(public, rng_key, epochs=self.config.train.pretrain_epochs)
        self.server.theta = self.engine.theta()


def assemble(
    config: Config,
    *,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    split: Split | None = None,
    fleet: Fleet | None = None,
) -> Assembly:
    """Load the data, build the model, share the data out and open the transport to the devices.

    Devices are simulated, unless a fleet of real ones is given.
    """
    asked = resolved(config, data, model)
    images = load_images(asked, data)
    dataset = fitting(images, asked)
    planning = backends.plans_memory(asked)
    asked = asked if planning else within_budget(asked, dataset, model)
    method = methods.create(asked)
    config = method.resolve(asked, lambda: parameters(asked, dataset, model))
    sharing = fleet.share_out if fleet else share_out
    split = checked(split, images) if split else sealed(sharing(dataset, config), images)
    given = None if config.model != asked.model else model
    network = build_model(config, dataset) if given is None else copy.deepcopy(given).cpu()
    graph = models.traced(network, dataset.shape)
    param_spec = models.analyze(network, dataset.shape, graph)
    check_trainable(network)
    check_outputs(network, dataset)
    method.check(param_spec)
    backend = backends.choose(config, method, network, param_spec, graph)
    asked, config = (replace(c, device_backend=backend) for c in (asked, config))
    if planning:
        asked, config = backends.planned(asked, config, param_spec, graph)
    engine = _engine(network, param_spec, dataset, config)
    shards = () if fleet else _shards(dataset, split, config)
    test = _test_parts(dataset) if fleet is None or fleet.tested_here else ()
    executor = executor_for(config, engine, dataset, (*shards, *test), graph)
    transport: Transport = (
        _transport_to(fleet, config, engine, dataset, split, graph)
        if fleet
        else Simulator(executor, shards, config)
    )
    publics = require("fedtiny.devices.torch_public", extra="torch")
    public = publics.TorchPublicSet(engine, _public_shard(dataset, split), graph)
    server = Server(config, transport, engine.theta(), public)
    samples = fleet.samples if fleet else int(split.table.sum()) // len(split.table)
    inputs = cost_inputs(asked, dataset, model) | {"samples": samples}
    if (config.model, config.parameters) == (asked.model, asked.parameters):
        inputs["graph"] = graph
    workload = Workload.of(asked, **inputs)
    return Assembly(
        *(asked, config, dataset, split, network, engine),
        *(method, server, executor, test, workload, graph),
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


def _shards(data: DataSet, split: Split, config: Config) -> tuple[DeviceData, ...]:
    ratio = config.selection.development_ratio
    return tuple(
        shard(device, data.train, own, ratio, config.seed)
        for device, own in enumerate(split.devices.devices)
    )


def _transport_to(
    fleet: Fleet,
    config: Config,
    engine: "TorchEngine",
    data: DataSet,
    split: Split,
    graph: Traced,
) -> Transport:
    native = backends.known(graph) if config.device_backend == "native" else None
    return fleet.open_transport(Premises(config, data, split, engine.param_spec, native))


def _public_shard(data: DataSet, split: Split) -> DeviceData:
    return DeviceData(SERVER, data.train, split.public, split.public)


def _test_parts(data: DataSet) -> tuple[DeviceData, ...]:
    """The test set in parts of fixed size, so that the executor can share them at no one's cost."""
    starts = range(0, len(data.test), TEST_PART)
    parts = (np.arange(start, min(start + TEST_PART, len(data.test))) for start in starts)
    return tuple(
        DeviceData(SERVER - 1 - number, data.test, part, part) for number, part in enumerate(parts)
    )


def _engine(
    model: "nn.Module", param_spec: models.ParamSpec, data: DataSet, config: Config
) -> "TorchEngine":
    augment = require("fedtiny.data.augment", extra="torch")
    engines = require("fedtiny.devices.torch_engine", extra="torch")
    transform = augment.Transform.of(data, config.data.augment, config.data.cutout)
    engine: TorchEngine = engines.TorchEngine(model, param_spec, transform, config.train)
    return engine
