"""The page as a file, and the figures beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedtiny.drawing import files
from fedtiny.drawing.figure import Figure
from fedtiny.errors import RunError
from fedtiny.files import make_folder, make_own_folder, write_atomically
from fedtiny.paths import user_path
from fedtiny.report.comparison import groups
from fedtiny.report.figures import figures
from fedtiny.report.page import comparison_figures, one_run, overall_figures, several_runs
from fedtiny.report.run import Run, read
from fedtiny.runs.folder import RunFolder


@dataclass(frozen=True)
class Written:
    """What was written, and why some of it was not."""

    page: Path
    figures: Path | None = None
    count: int = 0
    lacking: str = ""


def write_page(runs: Sequence[Run], out: Path) -> Path:
    """Write the page alone, which takes a moment."""
    text = one_run(runs[0]) if len(runs) == 1 else several_runs(runs, groups(runs))
    write_atomically(out, text.encode(errors="backslashreplace"))  # a folder may have any name
    return out


def write_report(folders: Sequence[RunFolder], out: Path | None = None) -> Written:
    """Write the page and every figure as SVG and, with the extra `plot`, as PNG."""
    runs = [read(folder) for folder in folders]
    place = user_path(out, "--out") if out else _default(folders)
    if place.is_dir():
        raise RunError(f"{place} is a folder; name the page with --out PAGE.html")
    beside = place.with_name(f"{place.stem}_figures")
    named = _named(runs)
    make_folder(place.parent)
    if named:
        make_own_folder(beside)
    write_page(runs, place)
    lacking = ""
    for name, figure in named.items():
        _, lacking = files.write(figure.canvas, figure.title, beside / name)
    return Written(place, beside, len(named), f"no PNG files: {lacking}" if lacking else "")


def _default(folders: Sequence[RunFolder]) -> Path:
    """In the run's folder; of several in the folder that holds the first."""
    if len(folders) == 1:
        return folders[0].report
    return folders[0].path.resolve().parent / folders[0].report.name


def _named(runs: Sequence[Run]) -> dict[str, Figure]:
    """Every figure by the name of its files; of several runs those that compare them."""
    if len(runs) == 1:
        return {f.name: f for drawn in figures(runs[0]).values() for f in drawn}
    found = groups(runs)
    overall = enumerate(overall_figures(found).values(), start=1)
    named = {f"all{number}_{f.name}": f for number, drawn in overall for f in drawn}
    return named | {
        f"comparison{number}_{figure.name}": figure
        for number, group in enumerate(found, start=1)
        for figure in comparison_figures(group)
    }
