"""The rows of a comparison: accuracy over seeds beside what it costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from fedtiny import config as configs
from fedtiny import cost
from fedtiny.compare.grid import Cell
from fedtiny.runs import metrics
from fedtiny.runs.assembly import load_data
from fedtiny.runs.folder import RunFolder, read_json
from fedtiny.runs.split import load_split


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
    accuracies = [read_json(folder.result)["accuracy"] for _, folder in cells]
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


def _costs(cell: Cell, folder: RunFolder) -> dict[str, float]:
    config = configs.resolve(cell.config)
    data = load_data(config)
    table = load_split(folder).table
    costs: dict[str, float] = cost.summary(
        config,
        shape=data.shape,
        classes=len(data.classes),
        samples=int(table.sum()) // len(table),
    )
    return costs


def _bytes_a_round(folder: RunFolder) -> float:
    moved = [
        (record["bytes_down"] + record["bytes_up"]) / max(1, len(record["answered"]))
        for record in metrics.read(folder)
    ]
    return fmean(moved)


def _selection_bytes(folder: RunFolder) -> float:
    selection = read_json(folder.selection)
    if not selection:
        return 0.0
    devices = len(load_split(folder).table)
    return float(selection["bytes_down"] + selection["bytes_up"]) / devices
