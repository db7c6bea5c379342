"""What is known of finished runs: from their folders, or from the cost model alone."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Unpack

from fedtiny import config as configs
from fedtiny import cost
from fedtiny.config import Config
from fedtiny.config.flat import Flat, flat
from fedtiny.cost import flops
from fedtiny.cost.network import IMAGES
from fedtiny.cost.workload import (
    PAPER_SAMPLES,
    CostInputs,
    CountedMask,
    Workload,
    layer_flow_of,
    method_of,
)
from fedtiny.errors import ConfigError, RunError, plural
from fedtiny.experiments.places import Cell, Place
from fedtiny.experiments.quantities import Numbers
from fedtiny.extras import own_code, require, version_of
from fedtiny.files import write_json
from fedtiny.runs import metrics, reading
from fedtiny.runs.folder import RunFolder, quoted
from fedtiny.runs.inputs import load_data
from fedtiny.runs.metrics import Record
from fedtiny.runs.split import load_split
from fedtiny.sparse.flow import LayerFlow

HOW_IT_IS_COMPUTED = (
    *("workers", "data.root", "device.python", "device.program", "device.timeout"),
    *("gpu.lanes", "gpu.cards"),
)
"""What may change from machine to machine without a change of what is computed."""
CHOSEN_BY_THE_MACHINE = {
    **{"threads": None, "simulator": "auto", "device_backend": "auto"},
    **{"gpu.kernels": "auto"},
}
"""Settings that a machine fills in if they are left open."""
CHOSEN_BY_BUDGETS = (
    *("density", "pruning.flow_beta", "train.batch_size", "selection.batch_size"),
    *("device.storage", "device.recompute"),
)
"""Settings that a run fills in to fit a budget of memory or of FLOPs."""
TOLD_BY_OTHERS = ("recipe",)
"""Names for several settings that are told each, whether or not the name was known by then."""
CHOSEN_BY_THE_DATA = ("fleet.devices", "fleet.partition")
"""Settings that a run fills in if the data say which device has which sample."""
RESULT = ("accuracy", "loss", "density", "rounds", "seconds", "bytes_down", "bytes_up")
COSTS = (
    *("flops_round", "flops_ratio", "flops_training", "selection_flops", "memory_paper"),
    *("selection_bytes_down", "selection_bytes_paper", "dense_model_bytes", "pool_size"),
    *("pretraining_passes", "server_passes"),
)
"""What is known of a run from its result, and from the cost model."""
PACKAGES = ("fedtiny", "torch", "numpy")
CPU_INFO = Path("/proc/cpuinfo")

Machine = dict[str, Any]
Curve = tuple[tuple[int, float], ...]
"""Accuracy after so many rounds, as far as it was measured."""
Found = dict[str, list["Finished"]]
"""Finished runs by their name but for the seed."""
Damaged = dict[str, str]
"""Why a finished run cannot be read and what to do, by its name."""


@dataclass(frozen=True)
class Finished:
    """A finished run in figures, with the settings that make it and where it was made."""

    name: str
    seed: int
    settings: Flat
    numbers: Numbers
    machines: tuple[Machine, ...] = ()
    kernels: tuple[str, ...] = ()
    """Of a GPU simulator, if told: whether devices trained at all weights (dense) or at kept ones
    (sparse)."""
    curve: Curve = ()
    """Empty where a file does not tell it."""


def in_folders(
    places: Iterable[Place], cells: Path, seeds: Sequence[int] | None = None
) -> tuple[Found, Damaged]:
    """Every finished run of these places, of whatever seed, but for those that are damaged."""
    found: Found = {}
    damaged: Damaged = {}
    for place in places:
        found[place.stem] = []
        for seed in _seeds(place, cells):
            if seeds is not None and seed not in seeds:
                continue
            cell = place.cell(seed)
            folder, settings = RunFolder(cells / cell.name), settings_of(cell.config)
            try:
                reading.config(folder)
                numbers, machines = measure(cell.config, folder), reading.machines(folder)
                kernels = tuple(reading.result(folder).get("kernels", ()))
                curve = curve_of(metrics.read(folder))
            except (ConfigError, RunError) as error:
                damaged[cell.name] = f"{error}; {way_anew(folder)}"
                continue
            require_same(cell, folder)
            run = Finished(cell.name, seed, settings, numbers, machines, kernels, curve)
            found[place.stem].append(run)
    return found, damaged


def by_cost_model(places: Iterable[Place]) -> Found:
    """For an experiment that trains nothing."""
    return {place.stem: [_costed(place)] for place in places}


def merged(places: Iterable[Place], *sources: Mapping[str, Sequence[Finished]]) -> Found:
    """Finished runs from folders and files together; the first source of a run counts."""
    found: Found = {}
    for place in places:
        by_seed: dict[int, Finished] = {}
        for source in sources:
            for run in source.get(place.stem, ()):
                by_seed.setdefault(run.seed, run)
        found[place.stem] = [by_seed[seed] for seed in sorted(by_seed)]
    return found


def _seeds(place: Place, cells: Path) -> list[int]:
    """Which seeds of a place have a result; names hold no character that means more than itself."""
    prefix = f"{place.stem}-s"
    names = (path.parent.name for path in cells.glob(f"{prefix}*/result.json"))
    seeds = (name.removeprefix(prefix) for name in names)
    return sorted(int(seed) for seed in seeds if seed.isdigit())


def _costed(place: Place) -> Finished:
    config = place.config
    inputs: CostInputs = {"samples": PAPER_SAMPLES}
    if config.data.name in IMAGES and config.data.name != "digits":
        inputs["shape"], inputs["classes"] = IMAGES[config.data.name]
    else:
        data = load_data(config)
        inputs["shape"], inputs["classes"] = data.input_shape, len(data.classes)
        inputs["samples"] = len(data.train) // config.fleet.devices
    numbers = costs(config, **inputs)
    return Finished(place.cell(0).name, 0, settings_of(config), numbers)


def measure(config: Config, folder: RunFolder) -> Numbers:
    """A finished run in figures.

    Bytes are those of all devices over the whole run, `bytes_round` what a device moved in a round
    on average (selection apart), `selection_bytes` what it moved in selection. Costs are those
    of a device of mean size for what was played: the masks of the rounds, the pool as drawn. FLOPs
    and memory are of the costliest round.
    """
    result, about, table = reading.result(folder), reading.about(folder), load_split(folder).table
    records, selection = metrics.read(folder), reading.selection(folder)
    rounds = result["rounds"]
    if len(records) != rounds or not all(map(reading.WHOLE_RECORD, records)):
        raise RunError(
            f"{folder.metrics} is missing or tells {len(records)} of {plural(rounds, 'round')}"
        )
    samples, known = int(table.sum()) // len(table), IMAGES.get(config.data.name)
    inputs: CostInputs = {
        "shape": known[0] if known else tuple(about["shape"]),
        "classes": table.shape[1],
        "samples": samples,
    }
    if config.memory_budget or config.flops_budget:
        config = reading.config(folder)
    method = method_of(configs.resolve(config))
    if method.config.pruning.budgets == "flow" and "flow" in method.budgets:
        inputs["flow"] = _flow_of(config, records[0], **inputs)
    moved = selection["bytes_down"] + selection["bytes_up"] if selection else 0
    found = costs(config, **inputs)
    return {
        **found,
        **_of_rounds(found, records),
        **_of_selection(selection.get("selection", {}), Workload.of(config, **inputs)),
        **about["server"],
        **{name: result[name] for name in RESULT},
        "bytes_round": bytes_a_round(records),
        "selection_bytes": float(moved) / len(table),
    }


def _flow_of(config: Config, record: Record, **inputs: Unpack[CostInputs]) -> LayerFlow:
    """Layer budgets as the run had them, so that they need not be measured again."""
    flow = layer_flow_of(config, **inputs)
    densities, sizes = record.get("densities", {}), flow.param_spec.sizes
    if not sizes.keys() <= densities.keys():
        raise RunError("its first round does not tell the density of each layer")
    counts = [round(densities[layer] * n) for layer, n in sizes.items()]
    pruning = config.pruning
    return flow.knowing(config.density, pruning.flow_beta, pruning.iterations, counts)


def costs(config: Config, **inputs: Unpack[CostInputs]) -> dict[str, float]:
    """The costs of a run that tables show, without running it."""
    found = cost.summary(configs.resolve(config), **inputs)
    return {name: found[name] for name in COSTS}


def _of_rounds(found: Numbers, records: Sequence[Record]) -> Numbers:
    """FLOPs and memory under the mask of the costliest round, FLOPs of the costliest plain one."""
    dense = found["flops_round"] / found["flops_ratio"]
    costliest = max(records, key=lambda record: record["flops"])
    return {
        "flops_round": costliest["flops"],
        "flops_ratio": costliest["flops"] / dense,
        "flops_training": max(record["flops_plain"] for record in records),
        "memory_paper": costliest["memory_paper"],
    }


def _of_selection(choice: Mapping[str, Any], work: Workload) -> Numbers:
    """FLOPs of selection under the pool as it was drawn, if that is told."""
    layers, drawn, spec = choice.get("layers"), choice.get("layer_counts"), work.network.param_spec
    if not drawn:
        return {}
    if layers != list(spec.prunable) or any(len(counts) != len(layers) for counts in drawn):
        raise RunError("its selection is that of another network")
    pool = [CountedMask(spec, dict(zip(layers, counts, strict=True))) for counts in drawn]
    return {"selection_flops": flops.selection(work, pool)}


def bytes_a_round(records: Sequence[Record]) -> float:
    """What a device that answered moved in a round, down and up, on the mean of all rounds.

    Evaluation on devices counts: they keep the model that it brings, and train from there.
    """
    return fmean(
        (record["bytes_down"] + record["bytes_up"] + record.get("bytes_evaluation", 0))
        / max(1, len(record["answered"]))
        for record in records
    )


def curve_of(records: Sequence[Record]) -> Curve:
    """Accuracy to four digits after each round that was evaluated; rounds count from 1."""
    found = ((record["round_number"], metrics.number(record, "accuracy")) for record in records)
    return tuple((done, round(accuracy, 4)) for done, accuracy in found if accuracy is not None)


def settings_of(config: Config) -> Flat:
    """All that must be set to make a run again; where its data lies is nobody's business."""
    return {name: value for name, value in flat(config).items() if name not in HOW_IT_IS_COMPUTED}


def differing(one: Flat, other: Flat) -> list[str]:
    """Names of the settings that two runs do not share, but for those that change no result."""
    names = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    no_matter = {*HOW_IT_IS_COMPUTED, *TOLD_BY_OTHERS}
    if "memory_budget" not in one.keys() | other.keys():
        no_matter.add("memory_model")
    return [name for name in names if name not in no_matter]


def left_open(asked: Flat) -> set[str]:
    """Settings that were left to the machine, whatever it has chosen."""
    return {key for key, value in CHOSEN_BY_THE_MACHINE.items() if asked.get(key) == value}


def unlike(config: Config, there: Config) -> list[str]:
    """In what a run that is there differs from the one that is asked for."""
    asked = flat(configs.resolve(config))
    no_matter = left_open(asked)
    if there.simulator == "reference":
        no_matter |= {name for name in asked if name.startswith("gpu.")}
    if config.memory_budget or config.flops_budget:
        no_matter |= set(CHOSEN_BY_BUDGETS)
    if there.fleet.partition == "natural":
        no_matter |= set(CHOSEN_BY_THE_DATA)
    found = differing(asked, flat(configs.resolve(there)))
    return [name for name in found if name not in no_matter]


def require_same(cell: Cell, folder: RunFolder) -> None:
    """A folder with other settings must not pass for this run's."""
    found = unlike(cell.config, reading.config(folder))
    if found:
        raise RunError(
            f"{folder.path} holds a run with other settings ({', '.join(found)}); choose "
            "another --out"
        )


def way_anew(folder: RunFolder) -> str:
    """What to do about a run that can neither be read nor go on."""
    return f"delete the folder {quoted(folder.path)}, and give the command again"


def this_machine(command: str) -> Machine:
    """On what a run is made: hardware, versions, and the command that was given."""
    cuda = require("torch", extra="torch").cuda
    cards = cuda.device_count() if cuda.is_initialized() else 0  # to ask would start them
    return {
        "command": command,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "gpu": [cuda.get_device_name(number) for number in range(cards)],
        "python": platform.python_version(),
        **{package: version_of(package) for package in PACKAGES},
        "code": own_code(),
    }


def _cpu() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def note_machine(folder: RunFolder, machine: Machine) -> None:
    """Add a machine to those that worked on a run."""
    known = reading.machines(folder)
    if machine not in known:
        write_json(folder.path / reading.MACHINES, {"machines": [*known, machine]})
