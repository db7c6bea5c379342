"""The page that a run ends with."""

from pathlib import Path

from fedtiny.report.run import read
from fedtiny.report.write import write_page
from fedtiny.runs.folder import RunFolder


def report_on(path: Path) -> None:
    """Write the page of a finished run and name it; whatever happens, the run stays finished."""
    folder = RunFolder(path)
    try:
        print(f"report: {write_page([read(folder)], folder.report)}")
    except Exception as error:
        print(f"no report ({type(error).__name__}: {error}); the run itself is whole")
