"""fedtiny resume."""

from pathlib import Path
from typing import Annotated

import tyro

from fedtiny.runs.runner import resume


def command(arguments: list[str]) -> int:
    """Parse and resume."""
    path = tyro.cli(
        Annotated[Path, tyro.conf.Positional, tyro.conf.arg(name="DIR", help="The run folder.")],
        prog="fedtiny resume",
        description="Continue a run from its last checkpoint.",
        args=arguments,
    )
    resume(path)
    return 0
