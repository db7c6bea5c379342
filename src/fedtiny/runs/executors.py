"""Who computes what the devices of a run are asked."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Engine
from fedtiny.devices.executors import Executor, ForkExecutor, SerialExecutor
from fedtiny.devices.remote import SubprocessExecutor
from fedtiny.errors import ConfigError
from fedtiny.extras import require
from fedtiny.models import Traced
from fedtiny.models.param_spec import ParamSpec
from fedtiny.runs import backend
from fedtiny.runs.resolve import has_gpu

if TYPE_CHECKING:
    from fedtiny.devices.torch_engine import TorchEngine


def executor_for(
    config: Config,
    engine: "TorchEngine",
    data: DataSet,
    shards: Sequence[DeviceData],
    graph: Traced,
) -> Executor:
    """The executor that a settled config asks for; shards are all that it will be asked about."""
    if config.simulator == "gpu":
        return _gpu_executor(config, engine, data)
    if config.device_backend == "native":
        return _native_executor(config, engine, data, shards, graph)
    return _processes(config, engine, engine.param_spec, shards)


def _processes(
    config: Config, engine: Engine, param_spec: ParamSpec, shards: Sequence[DeviceData]
) -> Executor:
    workers = config.workers or 1
    if workers == 1:
        return SerialExecutor(engine, config.seed)
    return ForkExecutor(engine, param_spec, shards, config.seed, workers)


def _native_executor(
    config: Config,
    engine: "TorchEngine",
    data: DataSet,
    shards: Sequence[DeviceData],
    graph: Traced,
) -> Executor:
    """Native devices in these processes, or in those of another Python."""
    outfit = backend.outfit(config, engine.param_spec, graph, data)
    if config.device.python is None:
        return _processes(config, outfit.engine(), outfit.param_spec, shards)
    return SubprocessExecutor(
        outfit, shards, python=config.device.python, count=config.workers or 1
    )


def _gpu_executor(config: Config, engine: "TorchEngine", data: DataSet) -> Executor:
    """Lanes on the GPU; what the server computes by itself goes there too."""
    torch = require("torch", extra="torch")
    lanes = require("fedtiny.devices.gpu.stream_executor", extra="torch")
    recipe = lanes.Recipe(
        model=copy.deepcopy(engine.model),
        param_spec=engine.param_spec,
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
    executor: Executor = lanes.StreamExecutor(recipe, cards)
    engine.to(cards[0])
    return executor
