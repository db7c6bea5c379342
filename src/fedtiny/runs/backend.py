"""How the devices of a run compute: natively sparse, or in PyTorch."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from fedtiny.config import RunConfig
from fedtiny.data import DataSet
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.device_spec import DeviceSpec
from fedtiny.devices.engine import Engine
from fedtiny.devices.executors import Executor, ForkExecutor, SerialExecutor, SubprocessExecutor
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.method import Method
from fedtiny.graph.ir import Graph
from fedtiny.models import Traced
from fedtiny.models.param_spec import ParamSpec
from fedtiny.native.library import Options, available
from fedtiny.native.model import NativeModel, largest_fit
from fedtiny.runs.resolve import has_gpu
from fedtiny.sparse.densities import uniform

if TYPE_CHECKING:
    from torch import nn

    from fedtiny.devices.torch_engine import TorchEngine

CROSSOVER = 0.3  # above this density dense PyTorch is faster on a CPU
MAX_NOISE = 1.5  # a candidate's layer may keep so many times what its density says
MAX_SWAPPED = 0.3  # share of a layer's kept weights that an adjustment may swap

Backend = Literal["native", "torch"]


def choose(
    config: RunConfig,
    method: Method,
    model: "nn.Module",
    param_spec: ParamSpec,
    graph: Traced,
) -> Backend:
    """The backend of a run; native if it was asked for, or is possible and faster."""
    if config.device_backend == "torch":
        if config.device.python:
            raise ConfigError("--device.python needs --device-backend native")
        return "torch"
    trouble = _trouble(config, method) or _misfit(model, param_spec, graph)
    if config.device_backend == "native":
        if trouble:
            raise ConfigError(f"--device-backend native: {trouble}; use --device-backend torch")
        return "native"
    faster = method.density_limit(0) < CROSSOVER
    if config.device.python and (trouble or not faster):
        raise ConfigError(
            "--device.python takes native devices, which this run would not have: "
            + (trouble or "its density is so high that PyTorch is faster")
        )
    return "native" if faster and not trouble else "torch"


def _trouble(config: RunConfig, method: Method) -> str:
    """Why no device can be native, whatever the network, or nothing."""
    if config.simulator == "gpu":
        return "the GPU simulator computes in PyTorch"
    if method.device_verbs:
        return f"method '{method.name}' brings Python of its own, which needs PyTorch"
    if not available():
        return "fedtiny was installed without its native library, for want of a C++ compiler"
    return ""


def _misfit(model: "nn.Module", param_spec: ParamSpec, graph: Traced) -> str:
    """Why native devices cannot play this network as PyTorch would, or nothing."""
    try:
        native = NativeModel(known(graph))
    except FedTinyError as error:
        return str(error)
    for name in (*param_spec.prunable, *param_spec.dense):
        if name not in native.tensors:
            return f"the network never uses '{name}'"
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            return f"'{name}' is frozen (requires_grad is False), and native devices train all"
    return ""


def known(graph: Traced) -> Graph:
    """The network as native devices take it; raises why it cannot be told."""
    if isinstance(graph, Graph):
        return graph
    raise graph


def planned(
    asked: RunConfig, config: RunConfig, param_spec: ParamSpec, graph: Traced
) -> tuple[RunConfig, RunConfig]:
    """Both configs, with devices that fit their memory budget."""
    if config.device_backend == "torch":
        raise ConfigError(
            "--memory-model device plans the memory of native devices, which this run has none of; "
            "with --device-backend torch it chooses the density"
        )
    fitting = _fitted(config, param_spec, known(graph))
    return replace(
        asked, train=fitting.train, selection=fitting.selection, device=fitting.device
    ), fitting


def _fitted(config: RunConfig, param_spec: ParamSpec, graph: Graph) -> RunConfig:
    """The config with the largest batch, and with it the storage, that fits a device's memory."""
    counts = uniform(param_spec, config.density)
    kept = {
        layer: min(size, int(count * MAX_NOISE) + 1)
        for (layer, size), count in zip(param_spec.sizes.items(), counts, strict=True)
    }
    options = Options(
        batch=config.train.batch_size,
        threads=config.threads,
        storage=config.device.storage,
        recompute=config.device.recompute,
        optimizer=config.train.optimizer,
        top_count=int(max(kept.values()) * MAX_SWAPPED),
    )
    chosen = largest_fit(NativeModel(graph), options, kept, config.device_budget)
    return replace(
        config,
        train=replace(config.train, batch_size=chosen.batch),
        selection=replace(
            config.selection, batch_size=min(config.selection.batch_size, chosen.batch)
        ),
        device=replace(config.device, storage=chosen.storage, recompute=chosen.recompute),
    )


def executor_for(
    spec: DeviceSpec, engine: "TorchEngine", data: DataSet, shards: Sequence[DeviceData]
) -> Executor:
    """The executor that a run's config asks for; shards are all that it will be asked about."""
    config = spec.config
    if config.simulator == "gpu":
        return _gpu_executor(spec, engine, data)
    if spec.graph and config.device.python:
        return SubprocessExecutor(spec, shards, python=config.device.python, count=config.workers)
    own: Engine = NativeEngine(spec) if spec.graph else engine
    if config.workers == 1:
        return SerialExecutor(own, config.seed)
    return ForkExecutor(own, spec, shards, config.workers)


def _gpu_executor(spec: DeviceSpec, engine: "TorchEngine", data: DataSet) -> Executor:
    """Lanes on the GPU; what the server computes by itself goes there too."""
    import torch

    from fedtiny.devices.gpu.stream_executor import StreamExecutor

    kind, count = ("cuda", torch.cuda.device_count()) if has_gpu() else ("cpu", 1)
    cards = count if spec.config.gpu.cards is None else spec.config.gpu.cards
    if kind == "cuda" and cards > count:
        raise ConfigError(f"--gpu.cards is {cards}, but this machine has {count}")
    devices = [torch.device(kind, number if kind == "cuda" else 0) for number in range(cards)]
    executor = StreamExecutor(copy.deepcopy(engine.model), spec, (data.train, data.test), devices)
    engine.to(devices[0])
    return executor
