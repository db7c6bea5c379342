"""Settings that only the run itself can settle: who computes, and what fits a device's memory."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedtiny import methods
from fedtiny.config import Config, RunConfig, resolve_run
from fedtiny.config.flat import PROGRAMS
from fedtiny.cost import fitted
from fedtiny.cost.workload import CostInputs, first_mask, layer_flow_of
from fedtiny.data import DataSet
from fedtiny.devices.executors import can_fork
from fedtiny.devices.hello import Hello
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.extras import require
from fedtiny.federation.method import Method
from fedtiny.graph.ir import Graph
from fedtiny.models import KINDS, Traced, not_native, untrained
from fedtiny.models.param_spec import ParamSpec
from fedtiny.native.library import NativeError, Options, available
from fedtiny.native.model import NativeModel, largest_fit
from fedtiny.process import cores, launch
from fedtiny.runs.inputs import check_config, check_inputs, naming_own

if TYPE_CHECKING:
    import torch
    from torch import nn

CROSSOVER = 0.3  # above this density dense PyTorch is faster on a CPU
MAX_NOISE = 1.5  # a candidate's layer may keep so many times what its density says
IDLE_PROGRAM = 2_000_000  # bytes of a program without Python that waits, with TLS
VALUE_BYTES = 64  # that it takes for a value of a model, at most
SAMPLE_BYTES = 40  # and for a sample's place in the order of an epoch

Backend = Literal["native", "torch"]
Kernels = Literal["auto", "dense", "sparse"]


def resolved(config: Config, data: DataSet | None, model: "nn.Module | None") -> RunConfig:
    """The config with nothing left open: presets, processes, and what came through the API."""
    check_config(config)
    check_inputs(data, model)
    config = naming_own(config, data, model)
    simulator = _simulator(config)
    gpu_in_use = require("torch", extra="torch").cuda.is_initialized()
    forking = can_fork() and not gpu_in_use  # with a GPU in use, a child process cannot compute
    threads, workers = config.threads, config.workers
    if threads is None:
        threads = 1 if can_fork() else cores()
    if workers is None:
        parallel = forking and threads == 1 and simulator == "reference"
        own_cores = max(1, cores() // launch().local_size)
        workers = min(own_cores, config.fleet.devices) if parallel else 1
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


def gpu_count() -> int:
    """How many GPUs PyTorch sees here."""
    count: int = require("torch", extra="torch").cuda.device_count()
    return count


def within_budgets(config: RunConfig, inputs: CostInputs) -> RunConfig:
    """The config at what fits its budgets of memory and FLOPs, if it has any.

    Memory that is planned does not bound the density: the batch and the storage give way to it.
    """
    if config.memory_budget is None and config.flops_budget is None:
        return config
    return fitted(config, density_is_set=config.plans_memory, **inputs)


def shared_naturally(config: RunConfig, devices: int) -> RunConfig:
    """The config with as many devices as the data name."""
    fleet = replace(config.fleet, devices=devices, partition="natural")
    return replace(config, fleet=fleet)


def cost_inputs(
    config: RunConfig, data: DataSet, own: "nn.Module | None", begun: "nn.Module | None" = None
) -> CostInputs:
    """What the cost model must know beside the config: costs are those of a device of mean size.

    `begun` is the network with the values that it begins with, if these are not the seed's.
    """
    samples = len(data.train) // config.fleet.devices
    shape = data.input_shape
    inputs: CostInputs = {"shape": shape, "classes": len(data.classes), "samples": samples}
    if own is not None:
        inputs["model"] = own
    known = own is not None or config.model in KINDS
    needed = config.flops_budget is not None or methods.create(config).needs_flow
    if known and needed:
        first: CostInputs = inputs if begun is None else {**inputs, "model": begun}
        inputs["flow"] = layer_flow_of(config, **first)
    return inputs


def choose_backend(
    config: RunConfig,
    method: Method,
    model: "nn.Module",
    param_spec: ParamSpec,
    graph: Traced,
) -> tuple[Backend, str]:
    """The backend of a run, and why it is not native if it is not.

    It is native if that was asked for, or is possible and faster.
    """
    asked = next((name for name in PROGRAMS if getattr(config.device, name)), "")
    if config.device.program:
        _check_programs(config, method)
    if config.device_backend == "torch":
        if asked:
            raise ConfigError(f"--device.{asked} needs --device-backend native")
        return "torch", not_native(graph)
    trouble = _trouble(config, method) or _misfit(model, param_spec, graph)
    if config.device_backend == "native":
        if trouble:
            raise ConfigError(f"--device-backend native: {trouble}; use --device-backend torch")
        return "native", ""
    faster = method.density_limit(0) < CROSSOVER
    trouble = trouble or ("" if faster else "its density is so high that PyTorch is faster")
    if asked and trouble:
        raise ConfigError(
            f"--device.{asked} takes native devices, which this run would not have: {trouble}"
        )
    return ("torch", trouble) if trouble else ("native", "")


def _check_programs(config: RunConfig, method: Method) -> None:
    """Refuse devices without Python where the method would ask them for what they cannot do."""
    extruding = method.extrudes and config.pruning.extrude
    if extruding or not (method.native and method.without_python):
        what = f"method '{method.name}'" + (" with --pruning.extrude" if extruding else "")
        raise ConfigError(
            f"{what} asks for what devices without Python cannot do; leave --device.program out"
        )


def backend_line(config: RunConfig, why_torch: str, why_dense: str) -> str:
    """What computes on the devices and, if they are dense, why."""
    if config.simulator == "gpu":
        return f"GPU simulator, {why_dense or f'{config.gpu.kernels} kernels'}"
    if config.device_backend == "native":
        return "native sparse devices"
    return f"dense PyTorch: {why_torch or '--device-backend torch asks for it'}"


def _trouble(config: RunConfig, method: Method) -> str:
    """Why no device can be native, whatever the network, or nothing."""
    if config.simulator == "gpu":
        return "the GPU simulator computes in PyTorch"
    if method.device_verbs:
        return f"method '{method.name}' brings Python of its own, which needs PyTorch"
    if method.extrudes and config.pruning.extrude:
        return "native devices cannot extrude weights (--pruning.extrude)"
    if not method.native:
        return f"method '{method.name}' asks for what native devices cannot do"
    if not available():
        return "fedtiny was installed without its native library, for want of a C++ compiler"
    return ""


def _misfit(model: "nn.Module", param_spec: ParamSpec, graph: Traced) -> str:
    """Why native devices cannot play this network as PyTorch would, or nothing."""
    if lacks := not_native(graph):
        return lacks
    try:
        native = NativeModel(known_graph(graph))
    except FedTinyError as error:
        return str(error)
    return untrained(model, param_spec, native.tensors)


def card() -> "torch.device":
    """The card that this process's GPU simulator uses, or the CPU if there is none."""
    torch = require("torch", extra="torch")
    if not has_gpu():
        return torch.device("cpu")  # type: ignore[no-any-return]
    number, count = launch().local_rank, gpu_count()
    if number >= count:
        raise ConfigError(
            f"{number + 1} ranks or more were started here, but this machine has {count} GPUs; "
            f"use torchrun --nproc-per-node {count}"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)  # type: ignore[no-any-return]


def choose_kernels(
    config: RunConfig, model: "nn.Module", param_spec: ParamSpec, graph: Traced
) -> tuple[Kernels, str]:
    """The kernels of the GPU simulator, and why sparse ones are out of the question if they are.

    With `auto` it is left to each request's mask; on a CPU, where they are emulated, that is dense.
    """
    asked = config.gpu.kernels
    if config.simulator != "gpu" or asked == "dense":
        return asked, ""
    if asked == "auto" and not has_gpu():
        return "dense", ""
    from fedtiny.devices.gpu.sparse.choice import plan_for

    batch, precision = config.train.batch_size, config.gpu.precision
    try:
        plan_for(model, param_spec, graph, card(), batch=batch, precision=precision)
    except FedTinyError as error:
        if asked == "sparse":
            why = f"--gpu.kernels sparse cannot train {config.model}: {error}"
            raise ConfigError(f"{why}; use --gpu.kernels dense") from error
        return "dense", f"dense kernels train the devices: {error}"
    return asked, ""


def may_be_sparse(config: RunConfig) -> bool:
    """Whether devices may be trained by sparse kernels."""
    return config.simulator == "gpu" and config.gpu.kernels != "dense"


def known_graph(graph: Traced) -> Graph:
    """The network as native devices and sparse kernels take it; raises why it cannot be told."""
    if isinstance(graph, Graph):
        return graph
    raise graph


def budgets_of(config: RunConfig, hellos: Mapping[int, Hello]) -> dict[int, int]:
    """The memory of the devices, by how many images they compute at once; 0: as this machine.

    Devices without Python say both of themselves; the budget is the most that any of them takes.
    """
    budget = config.device_budget
    found = {} if len(hellos) == config.fleet.devices else {0: budget}
    for hello in hellos.values():
        own = min(budget, hello.memory) if hello.memory else budget
        found[hello.lanes] = min(own, found.get(hello.lanes, own))
    return found


def beside_arena(
    config: RunConfig, method: Method, param_spec: ParamSpec, kept: int, hellos: Collection[Hello]
) -> dict[int, int]:
    """Most bytes that devices without Python take outside the arena, by how many images at once.

    Theta, mask, what the verbs of a request find and the reply take at most so much for each value;
    pools of candidates, a batch of images and the order of the samples come on top. A program that
    was given no limit of its own is a process whose code counts too.
    """
    if not hellos:
        return {}
    pools = [sum(a.nbytes for a in r.arrays.values()) for r in method.coarse_requests(param_spec)]
    values = VALUE_BYTES * (kept + param_spec.dense_count) + 2 * max(pools, default=0)
    found: dict[int, int] = {}
    for hello in hellos:
        images = config.train.batch_size * (4 * prod(hello.shape) + 8)
        idle = 0 if hello.memory else IDLE_PROGRAM
        own = idle + values + images + SAMPLE_BYTES * hello.samples
        found[hello.lanes] = max(own, found.get(hello.lanes, 0))
    return found


def plan_memory(
    asked: RunConfig,
    config: RunConfig,
    method: Method,
    param_spec: ParamSpec,
    graph: Traced,
    hellos: Mapping[int, Hello],
) -> tuple[RunConfig, RunConfig]:
    """Both configs, with the largest batch and its storage that fit the devices' memory."""
    densest = first_mask(method, param_spec).counts
    counts = np.maximum(method.layer_counts(param_spec), list(densest.values()))
    kept = {
        layer: min(size, int(count * MAX_NOISE) + 1)
        for (layer, size), count in zip(param_spec.sizes.items(), counts, strict=True)
    }
    sizes = dict(param_spec.sizes)
    asks_densely = any(dict(own.counts) == sizes for own in method.coarse_requests(param_spec))
    kept = sizes if asks_densely else kept
    options, budgets = native_options(config, kept), budgets_of(config, hellos)
    beside = beside_arena(config, method, param_spec, sum(kept.values()), hellos.values())
    try:
        chosen = largest_fit(NativeModel(known_graph(graph)), options, kept, budgets, beside)
    except NativeError as error:
        first = 1.0 if asks_densely else method.density_limit(0)
        or_lower = " or lower --density" if first < 1 else ""
        raise ConfigError(
            f"{error}, at density {first:g}: raise --memory-budget{or_lower}"
        ) from error
    measured = min(config.selection.batch_size, chosen.batch)
    changes: dict[str, Any] = {
        "train": replace(config.train, batch_size=chosen.batch),
        "selection": replace(config.selection, batch_size=measured),
        "device": replace(config.device, storage=chosen.storage, recompute=chosen.recompute),
    }
    return replace(asked, **changes), replace(config, **changes)


def native_options(config: RunConfig, kept: Mapping[str, int]) -> Options:
    """How a native device computes that keeps so many weights of each layer."""
    return Options(
        batch=config.train.batch_size,
        threads=config.threads,
        storage=config.device.storage,
        recompute=config.device.recompute,
        optimizer=config.train.optimizer,
        proximal=config.train.proximal_mu > 0,
        top_count=int(max(kept.values()) * config.pruning.rate),
    )
