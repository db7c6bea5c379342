"""fedtiny inspect."""

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from fedtiny import config as configs
from fedtiny.cli.packed_view import show_packed, show_packed_layers
from fedtiny.config import Config
from fedtiny.errors import FedTinyError, RunError
from fedtiny.runs import formatting, metrics
from fedtiny.runs.folder import RunFolder, read_json, way_on
from fedtiny.runs.integrity import require_complete
from fedtiny.runs.metrics import Record
from fedtiny.runs.split import load_split


def command(arguments: list[str]) -> int:
    """Parse and show."""
    path = tyro.cli(
        Annotated[
            Path,
            tyro.conf.Positional,
            tyro.conf.arg(name="DIR", help="The run folder, or a packed model."),
        ],
        prog="fedtiny inspect",
        description="Show what a run did, finished or not, or what a packed model is.",
        args=arguments,
    )
    console = Console(highlight=False)
    if path.is_file():
        show_packed(path, console)
    else:
        show(RunFolder.open(path), console)
    return 0


def show(folder: RunFolder, console: Console) -> None:
    """Print a run: what it is, its data, its selection, its rounds and its layers.

    What is damaged is told after all the rest.
    """
    config, records = configs.load(folder.config), metrics.read(folder)
    console.print(formatting.headline(config), style="bold", markup=False)
    console.print(_state(folder, config, records), markup=False, soft_wrap=True)
    damaged: list[FedTinyError] = []
    for part in (_show_partition, _show_selection):
        try:
            part(folder, console)
        except FedTinyError as error:
            damaged.append(error)
    if records:
        console.print(_rounds(records))
        console.print(formatting.layer_table(records[-1]))
    if folder.packed.exists():
        show_packed_layers(folder.packed, console)
    if damaged:
        raise damaged[0]


def _show_partition(folder: RunFolder, console: Console) -> None:
    if folder.partition.exists():
        table = load_split(folder).table
        if table.any():
            console.print(formatting.partition_table(table))


def _show_selection(folder: RunFolder, console: Console) -> None:
    if folder.selection.exists():
        selection = read_json(folder.selection)
        if "selection" in selection:
            console.print(formatting.selection_line(selection), markup=False)


def _state(folder: RunFolder, config: Config, records: list[Record]) -> str:
    if folder.result.exists():
        result = read_json(folder.result)
        model = formatting.size(folder.model.stat().st_size) if folder.model.exists() else "missing"
        return (
            f"finished: accuracy {result['accuracy']:.4f} at density {result['density']:.4f}, "
            f"{formatting.size(result['bytes_down'])} down and "
            f"{formatting.size(result['bytes_up'])} up "
            f"in {result['seconds']:.0f} s; model {folder.model} ({model})"
        )
    done = f"{len(records)} of {config.rounds} rounds"
    if folder.is_locked():
        return f"running: {done} done"
    try:
        require_complete(folder)
    except RunError as error:
        return f"stopped after {done}: {error}"
    return f"stopped after {done}; continue with: {way_on(folder)}"


def _rounds(records: list[Record]) -> Table:
    table = formatting.titled("Rounds")
    for name in formatting.ROUND_HEADINGS:
        table.add_column(name, justify="right", no_wrap=name != "missing")
    for record in records:
        table.add_row(*formatting.round_cells(record))
    return table
