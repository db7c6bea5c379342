"""fedtiny inspect: a run, or a packed model, in the terminal."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedtiny.config import Config
from fedtiny.data.images import own_shape
from fedtiny.errors import ExportError, FedTinyError, RunError, plural
from fedtiny.export import packed
from fedtiny.export.network import TinyModel
from fedtiny.export.packed import layer_bytes
from fedtiny.runs import formatting, metrics, reading
from fedtiny.runs.checkpoint import require_complete
from fedtiny.runs.folder import RunFolder, way_on
from fedtiny.runs.metrics import Record
from fedtiny.runs.split import load_split

BAR = 10  # characters
CARD = ("method", "model", "data", "accuracy", "density", "fedtiny")


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

    What is damaged is reported after all the rest.
    """
    config, records = reading.config(folder), metrics.read(folder)
    console.print(formatting.headline(config, _samples(folder)), style="bold", markup=False)
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
        _show_packed_layers(folder.packed, console)
    if damaged:
        raise damaged[0]


def _samples(folder: RunFolder) -> NDArray[np.int64] | None:
    """The samples of each device and class, unless that file is damaged, which is told later."""
    with suppress(FedTinyError):
        return load_split(folder).table if folder.partition.exists() else None
    return None


def _show_partition(folder: RunFolder, console: Console) -> None:
    if folder.partition.exists():
        table = load_split(folder).table
        if table.any():
            console.print(formatting.partition_table(table, width=console.width))


def _show_selection(folder: RunFolder, console: Console) -> None:
    if folder.selection.exists():
        selection = reading.selection(folder)
        if "selection" in selection:
            console.print(formatting.selection_line(selection), markup=False)


def _state(folder: RunFolder, config: Config, records: list[Record]) -> str:
    if folder.result.exists():
        result = reading.result(folder)
        model = formatting.size(folder.model.stat().st_size) if folder.model.exists() else "missing"
        return (
            f"finished: accuracy {result['accuracy']:.4f} at density {result['density']:.4f}"
            f"{formatting.whole_line(result)}, "
            f"{formatting.size(result['bytes_down'])} down and "
            f"{formatting.size(result['bytes_up'])} up "
            f"in {result['seconds']:.0f} s; model {folder.model} ({model})"
        )
    done = f"{len(records)} of {plural(config.rounds or 0, 'round')}"
    if folder.is_locked():
        return f"running: {done} done"
    try:
        require_complete(folder)
    except RunError as error:
        return f"stopped after {done}: {error}"
    return f"stopped after {done}; continue with: {way_on(folder)}"


def _rounds(records: list[Record]) -> Table:
    table = formatting.titled("Rounds", close=True)
    for name in formatting.ROUND_HEADINGS:
        table.add_column(name, justify="right", no_wrap=name != "missing")
    for record in records:
        table.add_row(*formatting.round_cells(record))
    return table


def show_packed(path: Path, console: Console) -> None:
    """Print a packed model: what it is, where it comes from, its layers."""
    model = packed.read(path)
    console.print(_packed_line(path, model), style="bold", markup=False)
    card = {name: model.card[name] for name in CARD if model.card.get(name) is not None}
    facts = (f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in card.items())
    console.print(", ".join(facts), markup=False)
    named = ", ".join(model.classes[: formatting.MAX_COLUMNS])
    more = ", ..." if len(model.classes) > formatting.MAX_COLUMNS else ""
    takes = f"takes samples {_by(own_shape(model.shape))}"
    console.print(
        f"{takes}, gives {plural(len(model.classes), 'class')}: {named}{more}",
        markup=False,
    )
    console.print(_packed_layers(model))


def _show_packed_layers(path: Path, console: Console) -> None:
    """Print the layers of a run's packed model, or what is wrong with the file."""
    try:
        model = packed.read(path)
    except ExportError as error:
        console.print(str(error), markup=False)
        return
    console.print(_packed_layers(model))
    console.print(_packed_line(path, model), markup=False)


def _packed_line(path: Path, model: TinyModel) -> str:
    size = path.stat().st_size
    share = size / model.dense_bytes
    return f"packed model {path}: {formatting.size(size)} ({model.held}), {share:.2%} of dense"


def _packed_layers(model: TinyModel) -> Table:
    """Every layer's shape, kept weights as bars, and bytes."""
    headings = ("layer", "shape", "kept", "density", "bytes", "")
    title = "Packed layers, dead channels left out"
    shown = formatting.titled(title, *headings, left=("layer", ""), no_wrap=True)
    layers, sizes = model.net.weights, layer_bytes(model, model.held)
    counts = {name: len(weights.values) for name, weights in layers.items()}
    largest = max(1, *counts.values())
    for name, weights in layers.items():
        count = counts[name]
        numbers = f"{count:,}", f"{count / weights.size:.4f}", formatting.size(sizes[name])
        shown.add_row(name, _by(weights.shape), *numbers, formatting.bar(count / largest, BAR))
    kept, places = sum(counts.values()), sum(weights.size for weights in layers.values())
    shown.add_section()
    shown.add_row(
        "all", "", f"{kept:,}", f"{kept / places:.4f}", formatting.size(sum(sizes.values()))
    )
    return shown


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
