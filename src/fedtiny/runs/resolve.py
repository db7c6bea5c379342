"""Settings that only the run itself can settle: its processes, its density by memory."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fedtiny import methods
from fedtiny.config import Config, RunConfig, parse_size, resolve_run
from fedtiny.config.aliases import CUSTOM
from fedtiny.cores import cores
from fedtiny.cost import largest_density
from fedtiny.cost.workload import CostInputs
from fedtiny.data import DataSet
from fedtiny.devices.executors import can_fork
from fedtiny.errors import ConfigError
from fedtiny.extras import require
from fedtiny.runs.user_inputs import check_config, check_data, check_model

if TYPE_CHECKING:
    from torch import nn


def resolved(config: Config, data: DataSet | None, model: "nn.Module | None") -> RunConfig:
    """The config with nothing left open: presets, processes, and what came through the API."""
    check_config(config)
    check_data(data)
    check_model(model)
    if data is not None:
        config = replace(config, data=replace(config.data, name=CUSTOM + data.name))
    if model is not None:
        config = replace(config, model=CUSTOM + type(model).__name__)
    simulator = _simulator(config)
    forking = can_fork() and not _gpu_in_use()
    threads, workers = config.threads, config.workers
    if threads is None:
        threads = 1 if can_fork() else cores()
    if workers is None:
        parallel = forking and threads == 1 and simulator == "reference"
        workers = min(cores(), config.fleet.devices) if parallel else 1
    if simulator == "reference":
        _check_sharing(workers, threads, forking=forking)
    return resolve_run(config, simulator=simulator, workers=workers, threads=threads)


def _check_sharing(workers: int, threads: int, *, forking: bool) -> None:
    """Refuse child processes that could not compute."""
    if workers > 1 and not forking:
        raise ConfigError(
            "this system cannot share work with child processes"
            + (" once PyTorch has used a GPU" if can_fork() else "")
            + "; use --workers 1"
        )
    if workers > 1 and threads > 1:
        raise ConfigError(
            f"--threads {threads} needs --workers 1: PyTorch's threads get stuck in child processes"
        )


def _simulator(config: Config) -> Literal["reference", "gpu"]:
    """A GPU where there is one, unless the method brings Python of its own for the devices."""
    own_verbs = methods.find(config.method).device_verbs
    if config.simulator == "gpu" and own_verbs:
        raise ConfigError(
            f"method '{config.method}' brings Python of its own for the devices, which the GPU "
            "simulator cannot run; use --simulator reference"
        )
    if config.simulator != "auto":
        return config.simulator
    return "gpu" if has_gpu() and not own_verbs else "reference"


def has_gpu() -> bool:
    """Whether PyTorch can compute on a GPU here."""
    available: bool = require("torch", extra="torch").cuda.is_available()
    return available


def _gpu_in_use() -> bool:
    """Whether PyTorch has started on a GPU, after which a child process cannot compute."""
    initialized: bool = require("torch", extra="torch").cuda.is_initialized()
    return initialized


def within_budget(config: RunConfig, data: DataSet, own: "nn.Module | None") -> RunConfig:
    """The config with the largest density that fits its memory budget, if it has one."""
    if config.memory_budget is None:
        return config
    budget = parse_size(config.memory_budget)
    inputs = cost_inputs(config, data, own)
    return replace(config, density=largest_density(config, budget, config.memory_model, **inputs))


def cost_inputs(config: Config, data: DataSet, own: "nn.Module | None") -> CostInputs:
    """What the cost model must know beside the config: costs are those of a device of mean size."""
    samples = len(data.train) // config.fleet.devices
    inputs: CostInputs = {"shape": data.shape, "classes": len(data.classes), "samples": samples}
    return inputs if own is None else {**inputs, "model": own}
