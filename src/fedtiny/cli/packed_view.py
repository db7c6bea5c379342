"""A packed model in the terminal: what it is, and its layers with their weights and bytes."""

from math import prod
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedtiny.errors import ExportError
from fedtiny.export import packed
from fedtiny.export.layers import layer_bytes
from fedtiny.export.network import TinyModel
from fedtiny.runs import formatting

BAR = 10
TOLD = ("method", "model", "data", "accuracy", "density", "fedtiny")


def show_packed(path: Path, console: Console) -> None:
    """Print a packed model: what it is, where it comes from, its layers."""
    model = packed.read(path)
    console.print(_headline(path, model), style="bold", markup=False)
    told = (f"{name} {_short(model.card[name])}" for name in TOLD if name in model.card)
    console.print(", ".join(told), markup=False)
    console.print(_use(model), markup=False)
    console.print(layer_table(model))


def show_packed_layers(path: Path, console: Console) -> None:
    """Print the layers of a run's packed model, or what is wrong with the file."""
    try:
        model = packed.read(path)
    except ExportError as error:
        console.print(str(error), markup=False)
        return
    console.print(layer_table(model))
    console.print(_headline(path, model), markup=False)


def _headline(path: Path, model: TinyModel) -> str:
    size = path.stat().st_size
    share = size / model.dense_bytes
    return f"packed model {path}: {formatting.size(size)} ({model.held}), {share:.2%} of dense"


def _use(model: TinyModel) -> str:
    named = ", ".join(model.classes[: formatting.MAX_COLUMNS])
    more = ", ..." if len(model.classes) > formatting.MAX_COLUMNS else ""
    return f"takes images {_by(model.shape)}, gives {len(model.classes)} classes: {named}{more}"


def layer_table(model: TinyModel) -> Table:
    """Every layer's shape, kept weights as bars, and bytes."""
    shown = formatting.titled("Packed layers, dead channels left out")
    shown.add_column("layer", no_wrap=True)
    for name in ("shape", "kept", "density", "bytes"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("", no_wrap=True)
    sizes = layer_bytes(model.net, model.held)
    most = max(1, *(len(weights.values) for weights in model.net.weights.values()))
    for name, weights in model.net.weights.items():
        count = len(weights.values)
        numbers = f"{count:,}", f"{count / weights.size:.4f}", formatting.size(sizes[name])
        shown.add_row(name, _by(weights.shape), *numbers, formatting.bar(count / most, BAR))
    kept = sum(len(weights.values) for weights in model.net.weights.values())
    places = sum(prod(weights.shape) for weights in model.net.weights.values())
    shown.add_section()
    shown.add_row(
        "all", "", f"{kept:,}", f"{kept / places:.4f}", formatting.size(sum(sizes.values()))
    )
    return shown


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _short(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
