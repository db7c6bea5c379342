"""fedtiny run."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from fedtiny import config as configs
from fedtiny.cli.main import config_file_first
from fedtiny.config import Config
from fedtiny.config.flat import PROGRAMS
from fedtiny.runs.opening import opened

PROG = "fedtiny run [CONFIG.toml]"


@dataclass(frozen=True)
class Arguments:
    """Train a tiny model over simulated devices.

    Settings come from the config file, if one is named first, and from flags, which win. A
    setting left open takes the data set's preset: the paper's for the paper's data sets, a quick
    one for the digits.
    """

    config: Annotated[Config, tyro.conf.arg(name="")]
    out: Path | None = None
    """New folder for the run; default: one under runs/."""
    track: tuple[str, ...] = ()
    """Where each round's figures go too: mlflow, tensorboard, trackio, wandb."""
    report: bool = True
    """Write report.html into the run folder at the end."""


def command(arguments: list[str]) -> int:
    """Parse and run."""
    file, flags = config_file_first(arguments)
    named = configs.load(file, programs=True) if file else Config()
    default = _without(named, PROGRAMS)
    parsed = tyro.cli(Arguments, prog=PROG, args=flags, default=Arguments(config=default))
    from_flags = [name for name in PROGRAMS if getattr(parsed.config.device, name) is not None]
    configs.refuse_program(_without(named, from_flags), str(file))
    with opened(parsed.config, parsed.out) as out:
        from fedtiny.runs.runner import run  # here, as what computes takes seconds to import
        from fedtiny.runs.tracking import reporting

        result = run(parsed.config, out=out, reporter=reporting(parsed.track))
    from fedtiny.finish import finish

    finish(result, report=parsed.report, track=parsed.track)
    return 0


def _without(config: Config, programs: Iterable[str]) -> Config:
    """The config without these programs of devices."""
    none: dict[str, Any] = dict.fromkeys(programs)
    return replace(config, device=replace(config.device, **none))
