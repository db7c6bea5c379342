"""fedtiny resume."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtiny.cli.packing import tell_packed
from fedtiny.runs.runner import resume


@dataclass(frozen=True)
class Arguments:
    """Continue a run from its last checkpoint, here or on another machine."""

    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="DIR")]
    """The run folder."""
    root: Annotated[Path | None, tyro.conf.arg(name="data.root")] = None
    """Where the data lies now; default: where it lay."""
    workers: int | None = None
    """Processes that play the devices; default: as many as before."""


def command(arguments: list[str]) -> int:
    """Parse and resume."""
    parsed = tyro.cli(Arguments, prog="fedtiny resume", args=arguments)
    resume(parsed.path, root=parsed.root, workers=parsed.workers)
    tell_packed(parsed.path)
    return 0
