"""fedtiny data."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from fedtiny.data import hub


@dataclass(frozen=True)
class Get:
    """Fetch a data set from the hub; this is the only command that uses the network."""

    name: tyro.conf.Positional[str]
    """cifar10, cifar100, cinic10 or svhn."""
    root: Path | None = None
    """Folder to put it in; default: FEDTINY_DATA, else data/."""


def command(arguments: list[str]) -> int:
    """Parse and fetch."""
    get = tyro.extras.subcommand_cli_from_dict(
        {"get": Get}, prog="fedtiny data", description="Data sets.", args=arguments
    )
    print(f"{get.name} is in {hub.get(get.name, get.root)}")
    return 0
