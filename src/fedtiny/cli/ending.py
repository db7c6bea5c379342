"""The last lines of a run."""

from collections.abc import Iterable
from pathlib import Path

from fedtiny.export.after import tell_packed
from fedtiny.report.after import report_on
from fedtiny.runs.tracking import seen_with


def tell_what_is_left(run: Path, *, report: bool, track: Iterable[str]) -> None:
    """Write the report and the packed model of a finished run, and say where everything is."""
    if report:
        report_on(run)
    tell_packed(run)
    for name in dict.fromkeys(track):
        print(f"{name}: {seen_with(name, run)}")
