"""Who computes what the devices of a run are asked."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedtiny.config import Config
from fedtiny.data import DataSet
from fedtiny.devices.crew import Alone, Crew, Workers
from fedtiny.devices.engine import Engine
from fedtiny.devices.remote import Remote
from fedtiny.devices.shard import Shard
from fedtiny.errors import ConfigError
from fedtiny.extras import require
from fedtiny.models.anatomy import Anatomy
from fedtiny.runs import backend
from fedtiny.runs.settle import has_gpu

if TYPE_CHECKING:
    from fedtiny.devices.torch_engine import TorchEngine


def crew_for(config: Config, engine: "TorchEngine", data: DataSet, shards: Sequence[Shard]) -> Crew:
    """The crew that a settled config asks for; shards are all that it will be asked about."""
    if config.simulator == "gpu":
        return _gpu_crew(config, engine, data)
    if config.device_backend == "native":
        return _native_crew(config, engine, data, shards)
    return _processes(config, engine, engine.anatomy, shards)


def _processes(config: Config, engine: Engine, anatomy: Anatomy, shards: Sequence[Shard]) -> Crew:
    workers = config.workers or 1
    if workers == 1:
        return Alone(engine, config.seed)
    return Workers(engine, anatomy, shards, config.seed, workers)


def _native_crew(
    config: Config, engine: "TorchEngine", data: DataSet, shards: Sequence[Shard]
) -> Crew:
    """Native devices in these processes, or in those of another Python."""
    outfit = backend.outfit(config, engine.anatomy, engine.model, data)
    if config.device.python is None:
        return _processes(config, outfit.engine(), outfit.anatomy, shards)
    return Remote(outfit, shards, python=config.device.python, count=config.workers or 1)


def _gpu_crew(config: Config, engine: "TorchEngine", data: DataSet) -> Crew:
    """Lanes on the GPU; what the server computes by itself goes there too."""
    torch = require("torch", extra="torch")
    lanes = require("fedtiny.devices.gpu.lanes", extra="torch")
    recipe = lanes.Recipe(
        model=copy.deepcopy(engine.model),
        anatomy=engine.anatomy,
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
