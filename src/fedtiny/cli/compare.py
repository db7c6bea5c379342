"""fedtiny compare."""

from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from rich.console import Console

from fedtiny.cli.main import config_file_first
from fedtiny.config import Config
from fedtiny.errors import DataError
from fedtiny.experiments import table
from fedtiny.experiments.compare import IN_FULL, Grid, load
from fedtiny.experiments.runner import Runner, notices, opening, unfinished
from fedtiny.paths import user_path

PROG = "fedtiny compare [CONFIG.toml]"


@dataclass(frozen=True)
class Arguments:
    """Run methods x densities x seeds and print one table.

    What is finished is not run again; what was cut is resumed. A TOML file may be named first,
    with lists `methods`, `density` and `seeds` beside the keys of a config. Every flag of
    `fedtiny run` sets the base of all runs.

    All methods train with the paper's recipe, have uniform layer budgets and no defenses. With
    `--recipe own --pruning.budgets None` (in a file `recipe = "own"`) each has its own recipe and
    budgets. The table tells both.
    """

    methods: tuple[str, ...]
    """Names of methods, or all."""
    density: tuple[float, ...]
    """Target densities."""
    seeds: tuple[int, ...]
    """Seeds; the table shows mean and standard deviation over them."""
    out: Path = Path("runs/compare")
    """Folder for the runs and the table."""


def command(arguments: list[str]) -> int:
    """Parse, run what is missing, print and write the table."""
    console = Console(highlight=False, soft_wrap=True)
    grid, out = parse(arguments)
    cells = grid.cells()
    todo = unfinished(cells, out)
    for line in (opening(cells, todo, out), *grid.unequal(), *notices(cells)):
        console.print(line, markup=False)
    account = Runner(out, console).run(cells, todo)
    if account.without_data:
        raise DataError(next(iter(account.without_data.values())))
    found = grid.results(out, account.left_out)
    account.failed |= found.damaged
    console.print(table.terminal(table.sheet(found), console.width))
    for line in account.lines():
        console.print(line, markup=False)
    written = table.write(found, out, IN_FULL)
    console.print(f"written: {', '.join(str(path) for path in written)}", markup=False)
    return 1 if account.failed else 0


def parse(arguments: list[str]) -> tuple[Grid, Path]:
    """The grid that a file and flags ask for, and where its runs go."""
    file, flags = config_file_first(arguments)
    grid = load(file) if file else Grid()
    parsed, rest = tyro.cli(
        Arguments,
        prog=PROG,
        args=flags,
        default=Arguments(grid.methods, grid.density, grid.seeds),
        return_unknown_args=True,
    )
    base = tyro.cli(Config, prog=PROG, args=rest, default=grid.base)
    grid = replace(
        grid, methods=parsed.methods, density=parsed.density, seeds=parsed.seeds, base=base
    )
    return grid, user_path(parsed.out, "--out")
