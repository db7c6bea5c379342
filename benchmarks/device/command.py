"""What `fedtiny bench device` does: parse, measure and print."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedtiny.runs import formatting

from . import measure
from .task import Settings


@dataclass(frozen=True)
class Device:
    """Measure a device's training step: dense, masked and native, taking turns in one run.

    Dense PyTorch runs in both layouts; ratios are against the better one. Memory is the peak
    resident size of a separate process each. A quiet machine gives the numbers worth quoting.
    """

    settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print everything as JSON."""


def command(arguments: list[str]) -> int:
    """Parse, measure and print."""
    asked = tyro.extras.subcommand_cli_from_dict(
        {"device": Device}, prog="fedtiny bench", description="Measurements.", args=arguments
    )
    found = _measured(asked.settings)
    if asked.json:
        print(json.dumps(found, indent=1))
    else:
        _print(asked.settings, found)
    return 0


def _measured(settings: Settings) -> dict[str, Any]:
    """Progress goes to the terminal's error stream, so that JSON stays clean."""
    console = Console(stderr=True)
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    progress = Progress(
        *columns,
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with progress:
        bar = progress.add_task("starting", total=measure.units(settings))
        return measure.measure(
            settings, lambda what: progress.update(bar, advance=1, description=what)
        )


def _print(settings: Settings, found: dict[str, Any]) -> None:
    console, machine = Console(highlight=False), found["machine"]
    console.print(_table([*found["baselines"], *found["rows"]]))
    width = f" (width {settings.width})" if settings.width else ""
    console.print(
        f"{settings.model}{width}, batch {settings.batch_size}, SGD with momentum, "
        f"{settings.threads} threads, {machine['instructions']}; "
        f"median of {settings.rounds} rounds, taken in turns; ms are wall time. "
        "Ratios are against the faster and the leaner dense layout. The paper's memory is "
        "parameters, gradients and momentum; resident is the peak of a process of its own.",
        markup=False,
    )
    for row in found["rows"]:
        console.print(_ratios(row), markup=False)
    if measure.is_busy(machine, settings.threads):
        console.print(
            f"Caution: the load average was {machine['load_average']:.1f} on {machine['cores']} "
            "cores before this began. Dense PyTorch tends to suffer most from other work, so these "
            "speed-ups may be too high; measure again on a quiet machine."
        )


def _table(rows: list[measure.Row]) -> Table:
    table = formatting.titled("A device's training step")
    table.padding = (0, 1, 0, 0)
    table.add_column("backend", no_wrap=True)
    headers = (
        "density",
        "ms",
        "speed\nup",
        "memory\n(paper)",
        "memory\n(resident)",
        "dense /\nours",
    )
    for name in headers:
        table.add_column(name, justify="right", no_wrap=True)
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        last = after is None or _group(after) != _group(row)
        table.add_row(*_cells(row), end_section=last)
    return table


def _ratios(row: measure.Row) -> str:
    """How fast and how lean a native device is beside dense PyTorch, in a line."""
    least, most = row["speedup_range"]
    storage = {"float32": "fp32 storage", "float16": "half storage"}[row["storage"]]
    how = [storage, *(["recompute"] if row["recompute"] else [])]
    how += ["no dead channels"] if row["remove_dead"] else []
    memory = f", in {1 / row['memory_ratio']:.2f} of its memory" if row["memory_ratio"] else ""
    return (
        f"density {row['density']:g}, {', '.join(how)}: {row['speedup']:.2f} times as fast as "
        f"dense PyTorch ({least:.2f} to {most:.2f}; {row['cpu_speedup']:.2f} in processor time)"
        f"{memory}"
    )


def _group(row: measure.Row) -> tuple[str, float]:
    return row["backend"], row["density"]


def _cells(row: measure.Row) -> tuple[str, ...]:
    resident, ratio = row["resident_bytes"], row["memory_ratio"]
    return (
        row["name"],
        f"{row['density']:g}",
        f"{row['ms']:.1f}",
        f"{row['speedup']:.1f}x",
        formatting.size(row["parameter_bytes"]),
        "" if resident is None else formatting.size(resident),
        "" if ratio is None else f"{ratio:.1f}x",
    )
