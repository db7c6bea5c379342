"""fedtiny export."""

from collections.abc import Iterable

import tyro
from rich.console import Console
from rich.table import Table

from fedtiny.export.formats import Order, Size, all_sizes, export
from fedtiny.runs import formatting


def command(arguments: list[str]) -> int:
    """Parse and export."""
    model, written = export(tyro.cli(Order, prog="fedtiny export", args=arguments))
    console = Console(highlight=False, soft_wrap=True)
    for path in written.files:
        console.print(f"wrote {path} ({formatting.size(path.stat().st_size)})", markup=False)
    if written.remark:
        console.print(written.remark, markup=False)
    console.print(size_table(all_sizes(model)), soft_wrap=False)
    return 0


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
