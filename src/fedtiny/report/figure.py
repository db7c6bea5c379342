"""A figure of a run, and what figures are made of."""

from dataclasses import dataclass

from fedtiny.report.canvas import Canvas
from fedtiny.report.lines import Series
from fedtiny.report.run import Run, number, numbers


@dataclass(frozen=True)
class Figure:
    """A drawing with its name (of the files), its title and what it says."""

    name: str
    title: str
    caption: str
    canvas: Canvas


def points_of(run: Run, key: str) -> tuple[tuple[float, float], ...]:
    """A number by round; rounds count from 1, and those without it are left out."""
    found = ((record["round"] + 1, number(record, key)) for record in run.records)
    return tuple((float(round), value) for round, value in found if value is not None)


def lines_of(run: Run, wanted: dict[str, tuple[str, str]]) -> list[Series]:
    """A line for each key that was recorded, named with its last value."""
    series = []
    for key, (name, colour) in wanted.items():
        points = points_of(run, key)
        if points:
            dashed = key == "effective_density"  # often covers the other line
            series.append(Series(f"{name} {points[-1][1]:.4g}", colour, points, dashed))
    return series


def layers_of(run: Run, key: str) -> list[str]:
    """Every layer that is named in any round, in order."""
    return list(dict.fromkeys(name for record in run.records for name in numbers(record, key)))


def rounds_of(run: Run) -> list[str]:
    return [str(record["round"] + 1) for record in run.records]


def short(layer: str) -> str:
    """A layer without what all of them share."""
    return layer.removesuffix(".weight")
