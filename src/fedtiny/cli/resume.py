"""fedtiny resume."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtiny.process import launch
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reading import is_finished


@dataclass(frozen=True)
class Arguments:
    """Continue a run from its last checkpoint, here or on another machine."""

    path: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(name="DIR")]
    """The run folder."""
    root: Annotated[Path | None, tyro.conf.arg(name="data.root")] = None
    """Where the data lies now; default: where it lay."""
    workers: int | None = None
    """Processes that simulate the devices; default: as many as before."""
    python: Annotated[str | None, tyro.conf.arg(name="device.python")] = None
    """Another Python that plays the devices; one that the run folder names is never started."""
    program: Annotated[str | None, tyro.conf.arg(name="device.program")] = None
    """Where devices without Python are, if the run had any."""
    track: tuple[str, ...] = ()
    """Where each round's figures go too: mlflow, tensorboard, trackio, wandb."""
    report: bool = True
    """Write report.html into the run folder at the end."""


def command(arguments: list[str]) -> int:
    """Parse and resume."""
    parsed = tyro.cli(Arguments, prog="fedtiny resume", args=arguments)
    if launch().size == 1:  # one of several ranks must not fail before it has met the others
        folder = RunFolder.open(parsed.path)
        ended = f"the run in {folder.path} is already finished; nothing is trained again"
        begun = f"continuing the run in {folder.path}"
        print(ended if is_finished(folder) else begun, flush=True)
    from fedtiny.finish import finish  # here, as what computes takes seconds to import
    from fedtiny.runs.runner import resume
    from fedtiny.runs.tracking import reporting

    reporter = reporting(parsed.track)
    result = resume(
        parsed.path,
        root=parsed.root,
        workers=parsed.workers,
        device_python=parsed.python,
        device_program=parsed.program,
        reporter=reporter,
    )
    finish(result, report=parsed.report, track=parsed.track)
    return 0
