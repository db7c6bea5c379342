"""The page, one HTML file that needs nothing else and runs no script, and figures beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from fedtiny import config as configs
from fedtiny.drawing import files, palette
from fedtiny.drawing.files import inline
from fedtiny.errors import RunError
from fedtiny.experiments import table as tables
from fedtiny.experiments.table import BEST, Entry
from fedtiny.files import make_folder, make_own_folder, write_atomically
from fedtiny.paths import user_path
from fedtiny.report.comparison import (
    Group,
    accuracy_over_density,
    apart,
    groups,
    table_results,
)
from fedtiny.report.curves import accuracy_curves
from fedtiny.report.facts import Figure, facts, task, title
from fedtiny.report.figures import figures
from fedtiny.report.front import front
from fedtiny.report.run import Run, commands, read
from fedtiny.runs import formatting
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.metrics import number


class Html(str):
    """Text that is HTML; only functions that escape what they are given make it."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Html:
    """An element; `class_` stands for class.

    >>> element("p", "1 < 2", element("b", "so"), class_="note")
    '<p class="note">1 &lt; 2<b>so</b></p>'
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{told}>{joined(*children)}</{name}>")


def joined(*children: str) -> Html:
    """One after the other; plain text among them is escaped."""
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in children))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> Html:
    """A table that scrolls by itself if the screen is narrow; columns in `left` are words."""
    sides = ["text" if heading in left else "number" for heading in headings]

    def row(name: str, cells: Sequence[str], **attributes: str) -> Html:
        pairs = zip(cells, sides, strict=True)
        return element("tr", *(element(name, c, **attributes, class_=side) for c, side in pairs))

    head = element("thead", row("th", headings, scope="col"))
    body = element("tbody", *(row("td", cells) for cells in rows))
    return element("div", element("table", head, body), class_="scroll", tabindex="0")


def one_run(run: Run) -> Html:
    """The page of a run."""
    heading = joined(element("h1", title(run)), element("p", formatting.headline(run.config)))
    return _document(f"{title(run)} - {run.name}", heading, _run(run))


def several_runs(runs: Sequence[Run], groups: Sequence[Group]) -> Html:
    """The page of several runs: what they have in common first, then each by itself."""
    done = sum(run.finished for run in runs)
    heading = joined(
        element("h1", f"{len(runs)} runs side by side"), element("p", f"{done} of them finished")
    )
    each = [
        element(
            "details",
            element("summary", element("b", run.name), f" {_in_a_word(run)}"),
            element("p", formatting.headline(run.config)),
            _run(run),
            class_="run",
        )
        for run in runs
    ]
    parts = [_group(group, groups) for group in groups]
    return _document(
        f"{len(runs)} runs", heading, joined(*parts, _section("Each run by itself", *each))
    )


def _document(name: str, heading: Html, content: Html) -> Html:
    page, style = (
        (resources.files("fedtiny.report") / f"page.{form}").read_text(encoding="utf-8")
        for form in ("html", "css")
    )
    parts = {"style": f"{style}\n{palette.rules()}", "heading": heading, "content": content}
    return Html(Template(page).substitute(parts, title=escape(name)))


def _run(run: Run) -> Html:
    large = (
        element("div", element("dt", name), element("dd", value, class_="value"), element("dd", on))
        for name, value, on in facts(run)
    )
    return joined(
        _notes(run.missing),
        element("dl", *large, class_="facts"),
        *(_section(name, _figures(drawn)) for name, drawn in figures(run).items()),
        _rounds(run),
        _repeat(run),
    )


def _group(group: Group, groups: Sequence[Group]) -> Html:
    results, left_out = table_results(group)
    parts = [_notes(left_out), _figures(comparison_figures(group))]
    if results.places:
        made = tables.sheet(results)
        rows = [[_entry(entry) for entry in row] for section in made.sections for row in section]
        told = (
            "Mean over seeds; best in bold, second underlined. FLOPs as a share of the dense "
            "network's and memory by the paper's count, both of the costliest round; bytes of a "
            "device in a round, and in selection."
        )
        parts += [table(made.headings, rows, made.left), element("p", told, class_="caption")]
    if len(groups) == 1:
        return _section("Comparison", *parts)
    own = element("p", f"Here: {apart(group, groups)}.", class_="caption")
    run = group.runs[0]
    return _section(f"Comparison: {task(run)}, {formatting.fleet_line(run.config)}", own, *parts)


def comparison_figures(group: Group) -> list[Figure]:
    """What can be drawn of several runs."""
    drawn = (accuracy_over_density(group), front(group), *accuracy_curves(group))
    return [figure for figure in drawn if figure]


def _entry(entry: Entry) -> str:
    if entry.rank is None:
        return entry.text
    return element("b" if entry.rank == BEST else "u", entry.text)


def _in_a_word(run: Run) -> str:
    accuracy = number(run.outcome, "accuracy")
    reached = "" if accuracy is None else f"accuracy {accuracy:.4f}"
    return reached if run.finished else f"{reached} (not finished)".strip()


def _section(name: str, *content: str) -> Html:
    return element("section", element("h2", name), *content)


def _notes(notes: Sequence[str]) -> Html:
    if not notes:
        return Html()
    listed = (element("li", note) for note in notes)
    return element("aside", element("b", "What is missing"), element("ul", *listed), class_="notes")


def _figures(drawn: Iterable[Figure]) -> Html:
    shown = (
        element(
            "figure",
            element("h3", figure.title),
            Html(inline(figure.canvas, figure.title)),
            element("figcaption", figure.caption),
            data_figure=figure.name,
        )
        for figure in drawn
    )
    return element("div", *shown, class_="figures")


def _folded(name: str, content: Html) -> Html:
    return element("details", element("summary", name), content, class_="card")


def _rounds(run: Run) -> Html:
    if not run.records:
        return Html()
    rows = (formatting.round_cells(record) for record in run.records)
    listed = table(formatting.ROUND_HEADINGS, rows, ("missing",))
    return _folded(f"All {len(run.records)} rounds in numbers", listed)


def _repeat(run: Run) -> Html:
    told = [
        joined(element("h3", what), element("pre", element("code", command), class_="command"))
        for what, command in commands(run)
    ]
    settings = element("pre", element("code", configs.dumps(run.config)), tabindex="0")
    headings, versions = ("what", "version"), run.versions.items()
    listed = table(headings, ((key, str(value)) for key, value in versions), headings)
    return _section(
        "Repeat this run",
        element("div", *told, class_="card"),
        _folded("Every setting (config.toml)", settings),
        _folded("Versions", listed),
    )


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
    return {
        f"comparison{number}_{figure.name}": figure
        for number, group in enumerate(groups(runs), start=1)
        for figure in comparison_figures(group)
    }
