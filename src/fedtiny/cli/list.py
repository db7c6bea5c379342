"""fedtiny list."""

from collections.abc import Callable
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtiny import data, methods, models

OWN = {
    "folder": "a folder of images by class, named by --data.root",
    "file": "arrays (.npz), a table (.csv, .parquet) or images in Parquet, named by --data.root",
}
KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": methods.names,
    "datasets": lambda: data.names() | OWN,
}


def command(arguments: list[str]) -> int:
    """Print the names of one kind of thing, with a line on each."""
    kind = tyro.cli(
        Annotated[
            Literal["methods", "models", "datasets", "operations"],
            tyro.conf.Positional,
            tyro.conf.arg(name="KIND", help="What to list."),
        ],
        prog="fedtiny list",
        description="What can be named in a config, and the operations that networks may have.",
        args=arguments,
    )
    tables = {"operations": _operations, "models": _models}
    Console().print(tables[kind]() if kind in tables else _described(KINDS[kind]()))
    return 0


def _described(names: dict[str, str]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, description in names.items():
        table.add_row(f"[bold]{name}[/bold]", escape(description))
    return table


def _models() -> Table:
    """Which network trains on native sparse devices, and which can be exported to C."""
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "native", "C", ""):
        table.add_column(heading)
    for name, description in models.names().items():
        has = models.KINDS[name].native, models.KINDS[name].c
        told = ("yes" if each else "no" for each in has)
        table.add_row(f"[bold]{name}[/bold]", *told, escape(description))
    return table


def _operations() -> Table:
    """Which backend has which operation; native is training, all others are exports."""
    from fedtiny.export import support

    table = Table(box=None, pad_edge=False)
    for heading in ("operation", *support.BACKENDS):
        table.add_column(heading)
    for name, forms in support.table().items():
        table.add_row(f"[bold]{name}[/bold]", *("yes" if has else "no" for has in forms))
    return table
