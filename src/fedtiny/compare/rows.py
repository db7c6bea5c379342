"""The rows of a comparison: accuracy over seeds beside what it costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedtiny.compare.grid import Cell
from fedtiny.compare.measured import Measured, measure
from fedtiny.runs.folder import RunFolder


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
    """One row a method and density: the dense ones, then densities and methods as in the cells."""
    groups: dict[tuple[float, str], list[Measured]] = {}
    for cell, folder in folders.items():
        key = (cell.config.density, cell.config.method)
        groups.setdefault(key, []).append(measure(cell.config, folder))
    found = [_row(density, method, runs) for (density, method), runs in groups.items()]
    order = [1.0, *dict.fromkeys(row.density for row in found)]
    return sorted(found, key=lambda row: order.index(row.density))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the standard deviation of a sample; that of one value is 0."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def _row(density: float, method: str, runs: list[Measured]) -> Row:
    accuracy, spread = mean_and_spread([run.accuracy for run in runs])
    costs = runs[0].costs
    return Row(
        density=density,
        method=method,
        seeds=len(runs),
        accuracy=accuracy,
        spread=spread,
        flops=float(costs["flops_round"]),
        flops_ratio=float(costs["flops_ratio"]),
        memory=float(costs["memory_paper"]),
        bytes_round=fmean(run.bytes_round for run in runs),
        selection_bytes=fmean(run.selection_bytes for run in runs),
    )
