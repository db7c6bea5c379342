"""From a config to everything that takes part in a run."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from fedtiny import methods, models
from fedtiny.config import Config, RunConfig
from fedtiny.cost import Workload
from fedtiny.data import DataSet, Partition
from fedtiny.data.transforms import Preparation
from fedtiny.devices import executors
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.distributed import (
    flow_of_first,
    measured_by_first,
    shared_out,
    theta_of_first,
)
from fedtiny.devices.engine import Engine, RngKey
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.devices.ranks import OneRank, Ranks
from fedtiny.devices.remote_devices import MixedExecutor, RemoteDevices
from fedtiny.devices.simulator import Simulator
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.extras import require
from fedtiny.federation import private, secure
from fedtiny.federation.messages import Request, evaluate
from fedtiny.federation.method import Method
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Transport
from fedtiny.models import Traced
from fedtiny.native.model import NativeModel
from fedtiny.randomness import BEFORE_ROUNDS, SERVER
from fedtiny.runs import resolve
from fedtiny.runs.fleet import Fleet
from fedtiny.runs.inputs import build_model, check_network, fitting, load_images, parameters
from fedtiny.runs.split import Split, checked, left_out, shards_of, share_out, with_checksum
from fedtiny.runs.weights import Weights, begun_with
from fedtiny.sparse.mask import Mask

if TYPE_CHECKING:
    from torch import nn

    from fedtiny.devices.torch_engine import TorchEngine

TEST_PART = 500  # images that are tested in one go


@dataclass
class Assembly:
    """A run that is ready to start or to be put where it stopped.

    `asked` is the config that was asked for and is saved; `config` is how the method runs it.
    """

    asked: RunConfig
    config: RunConfig
    data: DataSet
    split: Split
    model: "nn.Module"
    engine: "TorchEngine"
    method: Method
    server: Server
    executor: executors.Executor
    test: tuple[DeviceData, ...]
    workload: Workload
    graph: Traced
    backend: str = ""
    """What computes on the devices and, if it is not the fastest there is, why."""
    notes: tuple[str, ...] = ()
    """What whoever started the run should know beside, in sentences."""
    ranks: Ranks = field(default_factory=OneRank)
    weights: Weights | None = None
    """What it begins with, if that was given."""

    def arena(self, mask: Mask) -> int | None:
        """Bytes that a native device takes to train under a mask; None of other devices."""
        if self.config.device_backend != "native":
            return None
        options = resolve.native_options(self.config, mask.counts)
        sizes = mask.param_spec.sizes
        kept = {layer: n for layer, n in mask.counts.items() if n < sizes[layer]}
        return int(NativeModel(resolve.known_graph(self.graph)).plan(options, kept).total)

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy of the global model on the test set."""
        server = self.server
        if not self.test:
            return self._evaluated_by_devices()
        request = Request("evaluate", self.config.method, server.round, (evaluate(),), server.model)
        sums = {"loss": 0.0, "accuracy": 0.0}
        for reply in self.executor.answers([executors.Task(part, request) for part in self.test]):
            if isinstance(reply, FedTinyError):
                raise reply
            for name in sums:
                sums[name] += reply.metrics[name] * reply.samples
        return {name: total / len(self.data.test) for name, total in sums.items()}

    def _evaluated_by_devices(self) -> dict[str, float]:
        """The mean over the devices' own data, by samples, where the server has no test set."""
        outcome = self.server.ask("evaluate", (evaluate(),), theta=self.server.model)
        if not outcome.answered:
            raise FedTinyError("no device was there to measure the model; continue the run later")
        return {name: outcome.metrics[name] for name in ("loss", "accuracy")}

    def pretrain(self) -> None:
        """Train the dense model on the server's public one-shot set; every method starts here."""
        public = _public_shard(self.data, self.split)
        rng_key = RngKey(self.config.seed, BEFORE_ROUNDS, SERVER)
        self.engine.train(public, rng_key, epochs=self.config.train.pretrain_epochs)
        self.server.theta = theta_of_first(self.ranks, self.engine.theta())


def assemble(
    config: Config,
    *,
    data: DataSet | None = None,
    model: "nn.Module | None" = None,
    partition: Partition | None = None,
    weights: Weights | None = None,
    split: Split | None = None,
    fleet: Fleet | None = None,
    ranks: Ranks | None = None,
) -> Assembly:
    """Load the data, build the model, share the data out and open the transport to the devices.

    Devices are simulated, unless a fleet of real ones is given; several ranks share them out.
    """
    from fedtiny.devices.torch_engine import TorchEngine
    from fedtiny.devices.torch_public import TorchPublicSet

    ranks = ranks or OneRank()
    asked = config if isinstance(config, RunConfig) else resolve.resolved(config, data, model)
    images = load_images(asked, data, partition)
    dataset, sharing = fitting(images, asked), fleet.share_out if fleet else share_out
    if dataset.partition is not None:
        natural = split or sharing(dataset, asked)
        asked = resolve.shared_naturally(asked, len(natural.devices))
    if asked.weights is not None and weights is None:
        weights = Weights.read(asked.weights)
    begun = begun_with(weights, asked, dataset, model)
    inputs, planning = resolve.cost_inputs(asked, dataset, model, begun), asked.plans_memory
    if "flow" in inputs:
        inputs["flow"] = flow_of_first(inputs["flow"], ranks)
    wanted, known = asked, split
    if known is None:  # else budgets were met when the run began
        asked = resolve.within_budgets(asked, inputs)
    method = methods.create(asked)
    method.flow = inputs.get("flow")
    config = method.resolve(asked, lambda: parameters(asked, dataset, model))
    if config.model != asked.model:
        models.check_reads(config.model, dataset.input_shape, config.method)
    if weights and config.model != asked.model:
        raise ConfigError(f"method '{config.method}' trains '{config.model}'; leave --weights out")
    split = checked(known, images) if known else with_checksum(sharing(dataset, config), images)
    if begun is None or config.model != asked.model:
        network = build_model(config, dataset.input_shape, len(dataset.classes))
    else:
        network = copy.deepcopy(begun).cpu()
    graph = models.traced(network, dataset.input_shape)
    param_spec = models.analyze(
        network, dataset.input_shape, graph, depthwise=config.pruning.depthwise
    )
    check_network(network, dataset)
    method.check(param_spec)
    private.check(method, ranks.size)
    backend, why = resolve.choose_backend(config, method, network, param_spec, graph)
    if planning and backend == "torch":  # whose memory bounds the density
        wanted = replace(wanted, device_backend=backend)
        again = {"partition": partition, "weights": weights, "split": known, "ranks": ranks}
        return assemble(wanted, data=data, model=model, fleet=fleet, **again)  # type: ignore[arg-type]
    kernels, no_sparse = resolve.choose_kernels(config, network, param_spec, graph)
    asked, config = (
        replace(c, device_backend=backend, gpu=replace(c.gpu, kernels=kernels))
        for c in (asked, config)
    )
    shards = () if fleet else shards_of(dataset, split, config)
    test = _test_parts(dataset) if fleet is None or fleet.tested_here else ()
    private.check_test(config, test)
    notes: tuple[str, ...] = ()
    with ExitStack() as opened:  # closed if the run cannot begin
        remote = _remote(config, shards, ranks)
        if remote:
            opened.enter_context(closing(remote))
        if planning:
            met = remote.hellos if remote else {}
            asked, config = resolve.plan_memory(asked, config, method, param_spec, graph, met)
        preparation = Preparation.of(dataset, config.data.augment, config.data.cutout)
        lowered = backend == "native" or resolve.may_be_sparse(config)
        told = resolve.known_graph(graph) if lowered else None
        spec = DeviceSpec(config, param_spec, preparation, told)
        engine = TorchEngine(network, spec)
        if config.privacy.secure_aggregation:
            requests = Workload.of(asked, **inputs).requests()
            secure.check(method, requests)
            notes = secure.remarks(config, requests)
        executor = executor_for(spec, engine, dataset, (*shards, *test), remote)
        opened.pop_all()
    executor = shared_out(executor, ranks)
    transport: Transport = (
        fleet.open_transport(spec, dataset, split) if fleet else Simulator(executor, shards, config)
    )
    public = TorchPublicSet(engine, _public_shard(dataset, split), graph)
    server = Server(config, transport, engine.theta(), measured_by_first(public, ranks))
    samples = fleet.samples if fleet else int(split.table.sum()) // len(split.table)
    inputs["samples"] = samples
    if (config.model, config.parameters) == (asked.model, asked.parameters):
        inputs["graph"] = graph
    workload = Workload.of(asked, **inputs)
    return Assembly(
        *(asked, config, dataset, split, network, engine),
        *(method, server, executor, test, workload, graph),
        backend=resolve.backend_line(config, why, no_sparse),
        notes=(
            *left_out(dataset, split, config),
            *method.remarks(param_spec),
            *models.remarks(graph),
            *private.remarks(config, param_spec.norms),
            *notes,
        ),
        ranks=ranks,
        weights=weights,
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


def _public_shard(data: DataSet, split: Split) -> DeviceData:
    return DeviceData(SERVER, data.train, split.public, split.public)


def _test_parts(data: DataSet) -> tuple[DeviceData, ...]:
    """The test set in parts of fixed size, so that the executor can share them at no one's cost."""
    starts = range(0, len(data.test), TEST_PART)
    parts = (np.arange(start, min(start + TEST_PART, len(data.test))) for start in starts)
    return tuple(
        DeviceData(SERVER - 1 - number, data.test, part, part) for number, part in enumerate(parts)
    )


def _remote(config: RunConfig, shards: Sequence[DeviceData], ranks: Ranks) -> RemoteDevices | None:
    """The devices that are not played here, met and with the data that the run gives them."""
    if not config.device.program or not shards:
        return None
    if ranks.size > 1:
        raise ConfigError("--device.program devices are asked by one process; leave torchrun out")
    return RemoteDevices(config.device.program, shards, config.device.timeout)


def executor_for(
    spec: DeviceSpec,
    engine: "TorchEngine",
    data: DataSet,
    shards: Sequence[DeviceData],
    remote: RemoteDevices | None = None,
) -> executors.Executor:
    """The executor that a run's config asks for; shards are all that it will be asked about."""
    if remote is not None:
        remote.equip(spec)
        here = [shard for shard in shards if shard.device not in remote]
        return MixedExecutor(remote, executor_for(spec, engine, data, here))
    config = spec.config
    if config.simulator == "gpu":
        return _gpu_executor(spec, engine, data)
    if spec.graph and config.device.python:
        return executors.SubprocessExecutor(
            spec, shards, python=config.device.python, count=config.workers
        )
    own: Engine = NativeEngine(spec) if spec.graph else engine
    if config.workers == 1:
        return executors.SerialExecutor(own, config.seed)
    return executors.ForkExecutor(own, spec, shards, config.workers)


def _gpu_executor(spec: DeviceSpec, engine: "TorchEngine", data: DataSet) -> executors.Executor:
    """Lanes on the GPU; what the server computes by itself goes there too."""
    from fedtiny.devices.gpu.stream_executor import StreamExecutor

    device = resolve.card()
    executor = StreamExecutor(copy.deepcopy(engine.model), spec, (data.train, data.test), device)
    engine.to(device)
    return executor
