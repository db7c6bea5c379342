"""The rows of a comparison: accuracy over seeds beside what it costs."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from fedtiny import config as configs
from fedtiny import cost
from fedtiny.compare.grid import Cell
from fedtiny.errors import RunError
from fedtiny.runs import metrics
from fedtiny.runs.assembly import load_data
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.partition_file import load_table


@dataclass(frozen=True)
class Row:
    """A method at a density: the mean over seeds and the cost of a device.

    FLOPs are those of the costliest round, memory is counted as in the paper, bytes are what was
    sent and received, by a device in a round, on the mean of all rounds (selection apart).
    """

    density: float
    method: str
    seeds: int
    accuracy: float
    spread: float
    flops: float
    flops_ratio: float
    memory: float
    bytes_round: float
    selection_bytes: float


def rows(folders: Mapping[Cell, RunFolder]) -> list[Row]:
    """One row a method and density, in the order of the cells."""
    groups: dict[tuple[float, str], list[Cell]] = {}
    for cell in folders:
        groups.setdefault((cell.config.density, cell.config.method), []).append(cell)
    return [_row([(cell, folders[cell]) for cell in cells]) for cells in groups.values()]


def _row(cells: list[tuple[Cell, RunFolder]]) -> Row:
    accuracies = [_result(folder)["accuracy"] for _, folder in cells]
    cell, folder = cells[0]
    costs = _costs(cell, folder)
    return Row(
        density=cell.config.density,
        method=cell.config.method,
        seeds=len(cells),
        accuracy=fmean(accuracies),
        spread=stdev(accuracies) if len(accuracies) > 1 else 0.0,
        flops=float(costs["flops_round"]),
        flops_ratio=float(costs["flops_ratio"]),
        memory=float(costs["memory_paper"]),
        bytes_round=fmean(_bytes_a_round(folder) for _, folder in cells),
        selection_bytes=fmean(_selection_bytes(folder) for _, folder in cells),
    )


def _result(folder: RunFolder) -> dict[str, float]:
    try:
        result: dict[str, float] = json.loads(folder.result.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder.result} is missing or damaged") from error
    return result


def _costs(cell: Cell, folder: RunFolder) -> dict[str, float]:
    config = configs.resolve(cell.config)
    data = load_data(config)
    table = load_table(folder)
    costs: dict[str, float] = cost.summary(
        config,
        shape=data.shape,
        classes=len(data.classes),
        samples=round(float(table.sum()) / len(table)),
    )
    return costs


def _bytes_a_round(folder: RunFolder) -> float:
    moved = [
        (record["bytes_down"] + record["bytes_up"]) / max(1, len(record["answered"]))
        for record in metrics.read(folder)
    ]
    return fmean(moved)


def _selection_bytes(folder: RunFolder) -> float:
    selection = json.loads(folder.selection.read_text(encoding="utf-8"))
    if not selection:
        return 0.0
    devices = len(load_table(folder))
    return float(selection["bytes_down"] + selection["bytes_up"]) / devices
