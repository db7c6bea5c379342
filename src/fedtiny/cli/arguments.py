"""What several commands take."""

from pathlib import Path
from typing import Annotated

import tyro


def run_folder(command: str, description: str, arguments: list[str]) -> Path:
    """The one argument of a command that works on a run folder."""
    return tyro.cli(
        Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="DIR", help="The run folder.")],
        prog=f"fedtiny {command}",
        description=description,
        args=arguments,
    )
