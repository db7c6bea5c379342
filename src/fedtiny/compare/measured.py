"""What one finished run gives: what it reached, what it moved, what it costs a device."""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from fedtiny import config as configs
from fedtiny import cost
from fedtiny.config import Config
from fedtiny.cost.images import IMAGES
from fedtiny.cost.workload import CostInputs
from fedtiny.errors import RunError
from fedtiny.runs import metrics
from fedtiny.runs.folder import RunFolder, read_json
from fedtiny.runs.inputs import load_data
from fedtiny.runs.split import load_split

COSTS = (
    *("flops_round", "flops_ratio", "flops_training", "selection_flops", "memory_paper"),
    *("selection_bytes_down", "selection_bytes_paper", "dense_model_bytes", "pool_size"),
)
Costs = dict[str, float]


@dataclass(frozen=True)
class Measured:
    """A run in figures.

    Bytes are those of all devices over the whole run, `bytes_round` what a device moved in a round
    on average (selection apart), `selection_bytes` what it moved in selection. `costs` are those
    of a device of mean size by the cost model; FLOPs and memory are of the costliest round.
    """

    accuracy: float
    loss: float
    density: float
    rounds: int
    seconds: float
    bytes_down: int
    bytes_up: int
    bytes_round: float
    selection_bytes: float
    costs: Costs = field(default_factory=dict)


def measure(config: Config, folder: RunFolder) -> Measured:
    """The figures of a finished run."""
    result, table = read_json(folder.result), load_split(folder).table
    return Measured(
        accuracy=result["accuracy"],
        loss=result["loss"],
        density=result["density"],
        rounds=result["rounds"],
        seconds=result["seconds"],
        bytes_down=result["bytes_down"],
        bytes_up=result["bytes_up"],
        bytes_round=_bytes_a_round(folder, rounds=result["rounds"]),
        selection_bytes=_selection_bytes(folder, devices=len(table)),
        costs=costs(config, **_inputs(config, table)),
    )


def costs(config: Config, **inputs: Unpack[CostInputs]) -> Costs:
    """The costs of a run that a comparison shows, without running it."""
    found = cost.summary(configs.resolve(config), **inputs)
    return {name: found[name] for name in COSTS}


def _inputs(config: Config, table: NDArray[np.int64]) -> CostInputs:
    """What the cost model must know; the data itself is not read where its images are known."""
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
