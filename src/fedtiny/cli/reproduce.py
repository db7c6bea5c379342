"""fedtiny reproduce."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from fedtiny.compare import sheet
from fedtiny.compare.progress import OneLine
from fedtiny.errors import ConfigError, FedTinyError, RunError
from fedtiny.reproduce import result_file, table
from fedtiny.reproduce.experiment import Experiment
from fedtiny.reproduce.filters import Filter
from fedtiny.reproduce.finished import Damaged
from fedtiny.reproduce.job import Job
from fedtiny.reproduce.slices import Clock
from fedtiny.reproduce.suite import ALL, Suite
from fedtiny.reproduce.work import Account, work
from fedtiny.runs import formatting
from fedtiny.runs.resolve import has_gpu
from fedtiny.runs.unused_settings import unused_settings

DEFAULT_SCALE = "smoke"
WIDTH = 200  # of what is printed where there is no terminal


@dataclass(frozen=True)
class Arguments:
    """Make the paper's tables and figures: run what is missing, show ours beside the paper's.

    Runs lie in OUT/SCALE/cells and are shared by all experiments; what is finished is not run
    again, what was cut goes on from its checkpoint, here or on another machine. Tables, figure and
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
    methods: tuple[str, ...] = ()
    """Run these methods only."""
    models: tuple[str, ...] = ()
    """Run these networks only."""
    datasets: tuple[str, ...] = ()
    """Run these data sets only."""
    density: tuple[float, ...] = ()
    """Run these densities only, as the scale has them; dense methods run in any case."""
    variants: tuple[str, ...] = ()
    """Run these variants only: values on any other axis, as the table shows them."""
    minutes: float | None = None
    """Stop at the first checkpoint after so many minutes."""
    table_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Run nothing; write tables and figures from what is finished."""
    results: tuple[Path, ...] = ()
    """Count the runs in these results.json as finished, and run nothing."""
    root: Annotated[Path | None, tyro.conf.arg(name="data.root")] = None
    """Folder that holds the data; default: the environment variable FEDTINY_DATA."""
    workers: int | None = None
    """Processes that play the devices; default: all cores."""
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
    job = parse(asked)
    if asked.list or not asked.names:
        _show_list(job, console)
        return 0
    account = Account() if asked.runs_nothing else _run(asked, job, console)
    for experiment in job.experiments:
        account.failed |= _write(job, experiment, command_line(asked, job), console)
    return _tell(asked, job, account, console)


def parse(asked: Arguments) -> Job:
    """The order that the flags give, checked."""
    if asked.minutes is not None and asked.minutes <= 0:
        raise ConfigError(f"--minutes must be above 0, got {asked.minutes:g}")
    if not asked.seeds or min(asked.seeds) < 0:
        raise ConfigError("--seeds needs at least one number, and none below 0")
    if asked.workers is not None and asked.workers < 1:
        raise ConfigError(f"--workers must be at least 1, got {asked.workers}")
    suite = Suite.load(asked.folder)
    scale = asked.scale or result_file.scale_of(asked.results) or DEFAULT_SCALE
    if result_file.scale_of(asked.results) not in (None, scale):
        raise ConfigError(f"the result files are not of scale {scale}; leave --scale out")
    return Job(
        suite,
        suite.scale(scale),
        suite.find(asked.names or (ALL,)),
        asked.out,
        tuple(dict.fromkeys(asked.seeds)),
        Filter(asked.methods, asked.models, asked.datasets, asked.variants, asked.density),
        asked.root,
        asked.workers,
        asked.results,
    )


def command_line(asked: Arguments, job: Job, *, here: bool = False) -> str:
    """The command that makes the same; with the paths of this machine where it is to go on here."""
    parts = ["fedtiny", "reproduce", *asked.names, "--scale", job.scale.name]
    if job.seeds != Arguments.seeds:
        parts += ["--seeds", *map(str, job.seeds)]
    for flag in ("methods", "models", "datasets", "density", "variants"):
        values = getattr(asked, flag)
        if values:
            parts += [f"--{flag}", *map(str, values)]
    if asked.root:
        parts += ["--data.root", str(asked.root) if here else "DATA"]
    if asked.folder:
        parts += ["--folder", str(asked.folder) if here else "DIR"]
    if here and asked.out != Arguments.out:
        parts += ["--out", str(asked.out)]
    if here and asked.workers is not None:
        parts += ["--workers", str(asked.workers)]
    if here and asked.keep_models:
        parts += ["--keep-models"]
    if here and asked.minutes is not None:
        parts += ["--minutes", f"{asked.minutes:g}"]
    return shlex.join(parts)


def _run(asked: Arguments, job: Job, console: Console) -> Account:
    clock, command = Clock(asked.minutes), command_line(asked, job)
    cells = job.cells()
    if not has_gpu() and any(cell.config.simulator == "gpu" for cell in cells):
        console.print(formatting.NO_GPU)
    for line in unused_settings(*(cell.config for cell in cells)):
        console.print(line, markup=False)
    return work(
        cells,
        job.unfinished(),
        job.cells_folder,
        lambda title: OneLine(console, title),
        clock,
        command,
        keep_models=asked.keep_models,
    )


def _write(job: Job, experiment: Experiment, command: str, console: Console) -> Damaged:
    """Print the table, and write it with results and figure; gives what is missing for damage."""
    outcome = job.outcome(experiment)
    console.print(sheet.terminal(table.sheet(outcome), console.width))
    for note in table.notes(outcome):
        console.print(note, markup=False)
    written = job.write(outcome, command)
    try:
        written += job.draw(outcome)
    except FedTinyError as error:
        console.print(f"no figure: {error}", markup=False)
    names = ", ".join(path.name for path in written)
    console.print(f"written to {job.folder(experiment)}: {names}\n", markup=False)
    return outcome.damaged


def _tell(asked: Arguments, job: Job, account: Account, console: Console) -> int:
    """What is left to do, and how; gives the exit code."""
    for name, reason in account.failed.items():
        console.print(f"failed: {name}: {reason}", markup=False)
    for name in account.elsewhere:
        console.print(f"left to another process, which was working on it: {name}", markup=False)
    for name, reason in account.without_data.items():
        console.print(f"left out, as the data is not here: {name}: {reason}", markup=False)
    cells = job.cells()
    missing = account.failed.keys() | {cell.name for cell in job.unfinished()}
    left = sum(cell.name in missing - account.in_vain for cell in cells)
    if left and not asked.runs_nothing:
        why = "time is over: " if account.out_of_time else ""
        where = " --data.root DIR" if account.without_data and not asked.root else ""
        command = command_line(asked, job, here=True) + where
        console.print(
            f"{why}{left} of {len(cells)} cells remain; go on with: {command}", markup=False
        )
    return 1 if account.failed or (account.without_data and left == len(cells)) else 0


def _show_list(job: Job, console: Console) -> None:
    shown = formatting.titled(f"Tables and figures of the paper, scale {job.scale.name}")
    for heading in ("name", "in the paper", "what"):
        shown.add_column(heading, no_wrap=heading != "what")
    for heading in ("cells", "finished"):
        shown.add_column(heading, justify="right")
    troubles = []
    for experiment in job.experiments:
        try:
            counts = [*map(str, job.count(experiment))]
        except RunError as error:
            counts = ["-", "-"]
            troubles.append(str(error))
        shown.add_row(
            f"[bold]{experiment.name}[/bold]", experiment.source, experiment.title, *counts
        )
    console.print(shown)
    for trouble in troubles:
        console.print(trouble, markup=False)
    shared = len(job.cells())
    console.print(f"{shared} runs in all, as experiments share cells.", markup=False)
    for scale in job.suite.scales.values():
        console.print(f"--scale {scale.name}: {scale.title}", markup=False)
