"""fedtiny export."""

from collections.abc import Iterable

import tyro
from rich.console import Console
from rich.table import Table

from fedtiny.export.formats import Order, Size, all_sizes, export
from fedtiny.runs import formatting


def command(arguments: list[str]) -> int:
    """Parse and export."""
    model, files, remark = export(tyro.cli(Order, prog="fedtiny export", args=arguments))
    console = Console(highlight=False, soft_wrap=True)
    for path in files:
        console.print(f"wrote {path} ({formatting.size(path.stat().st_size)})", markup=False)
    if remark:
        console.print(remark, markup=False)
    if model is not None:
        console.print(size_table(all_sizes(model)), soft_wrap=False)
    return 0


def size_table(sizes: Iterable[Size]) -> Table:
    """Sizes as a table, with their share of the first."""
    headings = ("format", "size", "of dense")
    shown = formatting.titled("Size by format", *headings, left=("format",), no_wrap=True)
    shown.add_column("")
    dense = 0
    for name, count, remark in sizes:
        if count is None:
            shown.add_row(name, "", "", remark)
            continue
        dense = dense or count
        shown.add_row(name, formatting.size(count), f"{count / dense:.2%}", remark)
    return shown
