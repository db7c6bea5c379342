"""fedtiny reproduce."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from fedtiny.errors import ConfigError, RunError, plural
from fedtiny.experiments import table
from fedtiny.experiments.experiment import Experiment
from fedtiny.experiments.finished import Damaged
from fedtiny.experiments.places import Filter
from fedtiny.experiments.results import scale_of
from fedtiny.experiments.runner import Account, Clock, Runner, notices, opening
from fedtiny.experiments.suite import ALL, Suite
from fedtiny.experiments.sweep import Sweep
from fedtiny.paths import user_path
from fedtiny.runs import formatting

DEFAULT_SCALE = "smoke"
WIDTH = 200  # of what is printed where there is no terminal


@dataclass(frozen=True)
class Arguments:
    """Make the paper's tables and figures: run what is missing, show ours beside the paper's.

    Runs lie in OUT/SCALE/cells and are shared by all experiments; what is finished is not run
    again, what was cut goes on from its checkpoint, here or on another machine. Tables, figures and
    results.json are written to OUT/SCALE/EXPERIMENT from all that is finished.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Experiments by name or by place in the paper (figure3), or all; none shows the list."""
    list: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show every table and figure, and how much of it is finished."""
    scale: str | None = None
    """smoke (the default), mini or paper."""
    out: Path = Path("runs/reproduce")
    """Folder for runs, tables and figures."""
    seeds: tuple[int, ...] = (0,)
    """Seeds to run; tables show all that are finished."""
    part: Annotated[Filter, tyro.conf.OmitArgPrefixes] = field(default_factory=Filter)
    minutes: float | None = None
    """Stop at the first checkpoint after so many minutes."""
    table_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Run nothing; write tables and figures from what is finished."""
    results: tuple[Path, ...] = ()
    """Count the runs in these results.json as finished, and run nothing."""
    root: Annotated[Path | None, tyro.conf.arg(name="data.root")] = None
    """Folder that holds the data; default: the environment variable FEDTINY_DATA."""
    workers: int | None = None
    """Processes that simulate the devices; default: all cores."""
    keep_models: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Keep the trained networks; else `fedtiny resume CELL` makes one again from its checkpoint."""
    folder: Path | None = None
    """Folder with experiments of your own; default: the paper's."""

    @property
    def runs_nothing(self) -> bool:
        """Whether tables and figures alone are asked for."""
        return self.table_only or bool(self.results)


def command(arguments: list[str]) -> int:
    """Parse, run what is missing, and write tables and figures."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    asked = tyro.cli(Arguments, prog="fedtiny reproduce", args=arguments)
    sweep = parse(asked)
    if asked.list or not asked.names:
        _show_list(sweep, console)
        return 0
    sweep.require_told()
    account = Account() if asked.runs_nothing else _run(asked, sweep, console)
    for experiment in sweep.experiments:
        account.failed |= _write(sweep, experiment, command_line(asked, sweep), console)
    return _tell(asked, sweep, account, console)


def parse(asked: Arguments) -> Sweep:
    """What the flags ask for, checked."""
    if asked.minutes is not None and asked.minutes <= 0:
        raise ConfigError(f"--minutes must be above 0, got {asked.minutes:g}")
    if not asked.seeds or min(asked.seeds) < 0:
        raise ConfigError("--seeds needs at least one number, and none below 0")
    if asked.workers is not None and asked.workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {asked.workers}")
    suite, told = Suite.load(asked.folder), scale_of(asked.results)
    scale = asked.scale or told or DEFAULT_SCALE
    if told not in (None, scale):
        raise ConfigError(f"the result files are not of scale {scale}; leave --scale out")
    return Sweep(
        suite,
        suite.scale(scale),
        suite.find(asked.names or (ALL,)),
        user_path(asked.out, "--out"),
        tuple(dict.fromkeys(asked.seeds)),
        asked.part,
        asked.root,
        asked.workers,
        asked.results,
    )


def command_line(asked: Arguments, sweep: Sweep, *, here: bool = False) -> str:
    """The command that makes the same; with the paths of this machine if it is to go on here."""
    flags = {"scale": sweep.scale.name, "seeds": sweep.seeds, **vars(asked.part)}
    flags["data.root"] = asked.root if here else asked.root and "DATA"
    flags["folder"] = asked.folder if here else asked.folder and "DIR"
    if here:
        flags |= {name: getattr(asked, name) for name in ("out", "workers", "keep_models")}
        flags["minutes"] = asked.minutes
    parts, usual = ["fedtiny", "reproduce", *asked.names], vars(Arguments())
    for name, value in flags.items():
        if value and value != usual.get(name):
            values = value if isinstance(value, tuple) else () if value is True else (value,)
            texts = (f"{one:g}" if isinstance(one, float) else str(one) for one in values)
            parts += [f"--{name.replace('_', '-')}", *texts]
    return shlex.join(parts)


def _run(asked: Arguments, sweep: Sweep, console: Console) -> Account:
    clock, cells, todo = Clock(asked.minutes), sweep.cells(), sweep.unfinished()
    names, scale = ", ".join(e.name for e in sweep.experiments), sweep.scale.name
    first = f"{names} at scale {scale}, {opening(cells, todo, sweep.cells_folder)}"
    for line in (first, *notices(cells)):
        console.print(line, markup=False)
    command = command_line(asked, sweep)
    runner = Runner(sweep.cells_folder, console, clock, command, asked.keep_models)
    return runner.run(cells, todo)


def _write(sweep: Sweep, experiment: Experiment, command: str, console: Console) -> Damaged:
    """Print the table, and write it with results and figure; returns what is damaged."""
    results = sweep.results(experiment)
    console.print(table.terminal(table.sheet(results), console.width))
    for note in results.notes():
        console.print(note, markup=False)
    written, lacking = sweep.write(results, command)
    if lacking:
        console.print(f"no figure.png: {lacking}", markup=False)
    names = ", ".join(path.name for path in written)
    console.print(f"written to {sweep.folder(experiment)}: {names}\n", markup=False)
    return results.damaged


def _tell(asked: Arguments, sweep: Sweep, account: Account, console: Console) -> int:
    """What is left to do, and how; returns the exit code."""
    for line in account.lines():
        console.print(line, markup=False)
    cells = sweep.cells()
    missing = account.failed.keys() | {cell.name for cell in sweep.unfinished()}
    left = sum(cell.name in missing - account.in_vain for cell in cells)
    if left and not asked.runs_nothing:
        why = "time is over: " if account.out_of_time else ""
        where = " --data.root DIR" if account.without_data and not asked.root else ""
        command = command_line(asked, sweep, here=True) + where
        console.print(
            f"{why}{left} of {plural(len(cells), 'cell')} remain; go on with: {command}",
            markup=False,
        )
    return 1 if account.failed or (account.without_data and left == len(cells)) else 0


def _show_list(sweep: Sweep, console: Console) -> None:
    shown = formatting.titled(f"Tables and figures of the paper, scale {sweep.scale.name}")
    for heading in ("name", "in the paper", "what"):
        shown.add_column(heading, no_wrap=heading != "what")
    for heading in ("cells", "finished"):
        shown.add_column(heading, justify="right")
    troubles = []
    for experiment in sweep.experiments:
        try:
            counts = [*map(str, sweep.count(experiment))]
        except RunError as error:
            counts = ["-", "-"]
            troubles.append(str(error))
        shown.add_row(
            f"[bold]{experiment.name}[/bold]", experiment.source, experiment.title, *counts
        )
    console.print(shown)
    last = [
        *troubles,
        f"{plural(len(sweep.cells()), 'run')} in all, as experiments share cells.",
        *(f"--scale {scale.name}: {scale.title}" for scale in sweep.suite.scales.values()),
    ]
    for line in last:
        console.print(line, markup=False)
