"""fedtiny report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedtiny.report.run import open_runs
from fedtiny.report.write import write_report


@dataclass(frozen=True)
class Arguments:
    """Write what runs did as one HTML page to open from disk, and its figures beside it.

    Of several runs the page compares accuracy over density first. A folder that holds run
    folders stands for all of them; figures of single runs come with a report of that run alone.
    """

    paths: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(name="DIR")]
    """Run folders."""
    out: Path | None = None
    """The page; default: report.html in the run folder, or beside the first of several."""


def command(arguments: list[str]) -> int:
    """Parse, draw and write."""
    parsed = tyro.cli(Arguments, prog="fedtiny report", args=arguments)
    written = write_report(open_runs(list(parsed.paths)), parsed.out)
    print(f"report: {written.page}")
    if written.count:
        print(f"figures: {written.count} in {written.figures}")
    if written.lacking:
        print(written.lacking)
    return 0
