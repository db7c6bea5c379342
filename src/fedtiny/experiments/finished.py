"""What is known of finished runs: from their folders, or from the cost model alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from fedtiny import config as configs
from fedtiny import cost
from fedtiny.config import Config
from fedtiny.config.flat import Flat
from fedtiny.cost.images import IMAGES
from fedtiny.cost.workload import PAPER_SAMPLES, CostInputs
from fedtiny.errors import ConfigError, RunError
from fedtiny.experiments import machine
from fedtiny.experiments.cell import Cell, require_same, settings_of, way_anew
from fedtiny.experiments.machine import Machine
from fedtiny.experiments.places import Place
from fedtiny.experiments.quantities import Numbers
from fedtiny.files import read_json
from fedtiny.runs import metrics
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.inputs import load_data
from fedtiny.runs.split import load_split

RESULT = ("accuracy", "loss", "density", "rounds", "seconds", "bytes_down", "bytes_up")
COSTS = (
    *("flops_round", "flops_ratio", "flops_training", "selection_flops", "memory_paper"),
    *("selection_bytes_down", "selection_bytes_paper", "dense_model_bytes", "pool_size"),
)
"""What is known of a run from its result, and from the cost model."""
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


def in_folders(
    places: Iterable[Place], cells: Path, seeds: Sequence[int] | None = None
) -> tuple[Found, Damaged]:
    """Every finished run of these places, of whatever seed, but for those that are damaged."""
    found: Found = {}
    damaged: Damaged = {}
    for place in places:
        runs = found[place.stem] = []
        there = sorted(_seeds(place, cells))
        for cell in (place.cell(seed) for seed in there if seeds is None or seed in seeds):
            folder = RunFolder(cells / cell.name)
            try:
                configs.load(folder.config)
                run = _from_folder(cell, folder)
            except (ConfigError, RunError) as error:
                damaged[cell.name] = f"{error}; {way_anew(folder)}"
            else:
                require_same(cell, folder)
                runs.append(run)
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
    return [int(name.removeprefix(prefix)) for name in names if name.removeprefix(prefix).isdigit()]


def _from_folder(cell: Cell, folder: RunFolder) -> Finished:
    numbers, machines = measure(cell.config, folder), tuple(machine.noted(folder))
    return Finished(cell.name, cell.config.seed, settings_of(cell.config), numbers, machines)


def _costed(place: Place) -> Finished:
    config = place.config
    if config.data.name in IMAGES and config.data.name != "digits":
        shape, classes = IMAGES[config.data.name]
        samples = PAPER_SAMPLES
    else:
        data = load_data(config)
        shape, classes = data.shape, len(data.classes)
        samples = len(data.train) // config.fleet.devices
    numbers = costs(config, shape=shape, classes=classes, samples=samples)
    return Finished(place.cell(0).name, 0, settings_of(config), numbers)


def measure(config: Config, folder: RunFolder) -> Numbers:
    """A finished run in figures.

    Bytes are those of all devices over the whole run, `bytes_round` what a device moved in a round
    on average (selection apart), `selection_bytes` what it moved in selection. Costs are those
    of a device of mean size by the cost model; FLOPs and memory are of the costliest round.
    """
    result, table = read_json(folder.result), load_split(folder).table
    return {
        **costs(config, **_inputs(config, table)),
        **{name: result[name] for name in RESULT},
        "bytes_round": _bytes_a_round(folder, rounds=result["rounds"]),
        "selection_bytes": _selection_bytes(folder, devices=len(table)),
    }


def costs(config: Config, **inputs: Unpack[CostInputs]) -> dict[str, float]:
    """The costs of a run that tables show, without running it."""
    found = cost.summary(configs.resolve(config), **inputs)
    return {name: found[name] for name in COSTS}


def _inputs(config: Config, table: NDArray[np.int64]) -> CostInputs:
    """What the cost model must know; the data itself is read only if its images are not known."""
    samples = int(table.sum()) // len(table)
    known = IMAGES.get(config.data.name)
    shape = known[0] if known else load_data(configs.resolve(config)).shape
    return {"shape": shape, "classes": table.shape[1], "samples": samples}


def _bytes_a_round(folder: RunFolder, rounds: int) -> float:
    records = metrics.read(folder)
    if len(records) != rounds:
        raise RunError(f"{folder.metrics} is missing or tells {len(records)} of {rounds} rounds")
    return fmean(
        (record["bytes_down"] + record["bytes_up"]) / max(1, len(record["answered"]))
        for record in records
    )


def _selection_bytes(folder: RunFolder, devices: int) -> float:
    selection = read_json(folder.selection)
    if not selection:
        return 0.0
    return float(selection["bytes_down"] + selection["bytes_up"]) / devices
