"""The last lines of a run."""

from collections.abc import Iterable

from fedtiny.export.after import tell_packed
from fedtiny.report.after import report_on
from fedtiny.runs.runner import Result
from fedtiny.runs.tracking import seen_with


def tell_what_is_left(result: Result, *, report: bool, track: Iterable[str]) -> None:
    """Write the report and the packed model of a finished run, and say where everything is."""
    if report:
        report_on(result.path)
    tell_packed(result.path, result.graph)
    for name in dict.fromkeys(track):
        print(f"{name}: {seen_with(name, result.path)}")
