"""fedtiny export."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

from fedtiny.export.formats import Format, Order, Written, export
from fedtiny.export.sizes import Size, all_sizes
from fedtiny.runs import formatting


@dataclass(frozen=True)
class Arguments:
    """Take the tiny model of a run away, and see how large it is in every format.

    packed: one small file for fedtiny predict and fedtiny.load. onnx: with sparse initializers.
    torch: a dense state dict and how to build it. c: C99 source without dependencies.
    """

    source: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="DIR")]
    """The run folder, or a packed model."""
    format: Format = "packed"
    """What to write."""
    out: Path | None = None
    """Where to write it; default: beside the model."""
    values: Literal["fp32", "fp16", "int8"] | None = None
    """How weights are held: packed fp32, fp16 or int8; c fp32 or int8 (its default)."""
    fold: bool = True
    """Make batch norm part of the layer before it."""
    plain: bool = False
    """ONNX without sparse initializers."""


def command(arguments: list[str]) -> int:
    """Parse and export."""
    order = Order(**vars(tyro.cli(Arguments, prog="fedtiny export", args=arguments)))
    model, written = export(order)
    console = Console(highlight=False, soft_wrap=True)
    _tell(written, console)
    console.print(size_table(all_sizes(model)), soft_wrap=False)
    return 0


def _tell(written: Written, console: Console) -> None:
    for path in written.files:
        console.print(f"wrote {path} ({formatting.size(path.stat().st_size)})", markup=False)
    if written.remark:
        console.print(written.remark, markup=False)


def size_table(sizes: Iterable[Size]) -> Table:
    """Sizes as a table, with their share of the first."""
    shown = formatting.titled("Size by format")
    shown.add_column("format", no_wrap=True)
    for name in ("size", "of dense"):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("")
    dense = 0
    for each in sizes:
        if each.bytes is None:
            shown.add_row(each.format, "", "", each.remark)
            continue
        dense = dense or each.bytes
        shown.add_row(
            each.format, formatting.size(each.bytes), f"{each.bytes / dense:.2%}", each.remark
        )
    return shown
