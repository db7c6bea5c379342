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
    "models": models.names,
    "datasets": lambda: data.names() | OWN,
}


def command(arguments: list[str]) -> int:
    """Print the names of one kind of thing, with a line on each."""
    kind = tyro.cli(
        Annotated[
            Literal["methods", "models", "datasets"],
            tyro.conf.Positional,
            tyro.conf.arg(name="KIND", help="What to list."),
        ],
        prog="fedtiny list",
        description="What can be named in a config.",
        args=arguments,
    )
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, description in KINDS[kind]().items():
        table.add_row(f"[bold]{name}[/bold]", escape(description))
    Console().print(table)
    return 0
