"""The page: one HTML file that needs nothing else and runs no script."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from fedtiny import config as configs
from fedtiny.drawing import files
from fedtiny.drawing.figure import Figure
from fedtiny.drawing.files import inline
from fedtiny.errors import plural
from fedtiny.experiments import table as tables
from fedtiny.experiments.table import BEST, Entry
from fedtiny.report import devices
from fedtiny.report.comparison import (
    Group,
    accuracy_over_density,
    apart,
    table_results,
    unusual,
)
from fedtiny.report.curves import accuracy_curves
from fedtiny.report.facts import data_name, facts, task, title
from fedtiny.report.figures import figures
from fedtiny.report.front import fronts
from fedtiny.report.html import Html, element, joined, table
from fedtiny.report.run import Run, commands
from fedtiny.runs import formatting
from fedtiny.runs.metrics import number

COSTS = (
    "FLOPs as a share of the dense network's and memory by the paper's count, both of the "
    "costliest round; bytes of a device in a round, and in selection."
)


def one_run(run: Run) -> Html:
    """The page of a run."""
    heading = joined(
        element("h1", title(run)), element("p", formatting.headline(run.config, run.table))
    )
    return _document(f"{title(run)} - {run.name}", heading, _run(run))


def several_runs(runs: Sequence[Run], groups: Sequence[Group]) -> Html:
    """The page of several runs: what they have in common first, then each by itself."""
    done = sum(run.finished for run in runs)
    finished = "all" if done == len(runs) else str(done)
    heading = element("h1", f"{len(runs)} runs, {finished} finished")
    each = [
        element(
            "details",
            element("summary", element("b", run.name), f" {_in_a_word(run)}"),
            element("p", formatting.headline(run.config, run.table)),
            _run(run),
            class_="run",
        )
        for run in runs
    ]
    drawn = overall_figures(groups)
    tabled = {name: _all_runs(own) for name, own in on_same_data(groups).items()}
    parts = [
        *(
            _section(name, _figures(drawn.get(name, [])), listed)
            for name, listed in tabled.items()
            if name in drawn or listed
        ),
        *(_group(group, groups) for group in groups),
        _section("Each run by itself", *each),
    ]
    return _document(f"{len(runs)} runs", heading, joined(*parts))


def _document(name: str, heading: Html, content: Html) -> Html:
    page, style = (
        (resources.files("fedtiny.report") / f"page.{form}").read_text(encoding="utf-8")
        for form in ("html", "css")
    )
    parts = {"style": f"{style}\n{files.rules()}", "heading": heading, "content": content}
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
        _devices(run),
        _repeat(run),
    )


def _group(group: Group, groups: Sequence[Group]) -> Html:
    results, left_out = table_results(group)
    parts = [_notes(left_out), _figures(comparison_figures(group))]
    if results.places:
        made = tables.sheet(results)
        rows = [[_entry(entry) for entry in row] for section in made.sections for row in section]
        listed = table("Runs side by side", made.headings, rows, made.left)
        marks = "best in bold, second underlined, both only if run with two seeds or more"
        told = f"Mean over seeds; {marks}. {COSTS}"
        parts += [listed, element("p", told, class_="caption")]
    if len(groups) == 1:
        return _section("Comparison", *parts)
    own = element("p", f"Here: {apart(group, groups)}.", class_="caption")
    run = group.runs[0]
    fleet = formatting.fleet_line(run.config, run.table)
    return _section(f"Comparison: {task(run)}, {fleet}", own, *parts)


def _all_runs(groups: Sequence[Group]) -> Html:
    """Runs of different settings in one table, with what is unusual about each."""
    found = [(unusual(group, groups), table_results(group)[0]) for group in groups]
    made = [(name, tables.sheet(results)) for name, results in found if results.places]
    if not made:
        return joined()
    rows = [
        [*(entry.text for entry in row), name or "as usual"]
        for name, sheet in made
        for section in sheet.sections
        for row in section
    ]
    first = made[0][1]
    listed = table("All runs", (*first.headings, "settings"), rows, (*first.left, "settings"))
    return joined(listed, element("p", f"Mean over seeds. {COSTS}", class_="caption"))


def on_same_data(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups of different settings on the same data, by section."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        data = {name: v for name, v in group.settings.items() if name.startswith("data.")}
        found.setdefault(str(data), []).append(group)
    several = [own for own in found.values() if len(own) > 1]
    return {f"All runs on {data_name(own[0].runs[0])}": own for own in several}


def overall_figures(groups: Sequence[Group]) -> dict[str, list[Figure]]:
    """What runs of different settings cost, and how they learned, on the same data, by section."""
    drawn = {
        name: [*fronts(own), *accuracy_curves(own)] for name, own in on_same_data(groups).items()
    }
    return {name: figures for name, figures in drawn.items() if figures}


def comparison_figures(group: Group) -> list[Figure]:
    """What can be drawn of several runs."""
    drawn = (accuracy_over_density(group), *fronts([group]), *accuracy_curves([group]))
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
    name = f"All {plural(len(run.records), 'round')} in numbers"
    return _folded(name, table(name, formatting.ROUND_HEADINGS, rows, ("missing",)))


def _devices(run: Run) -> Html:
    headings, rows = devices.rows(run)
    name = f"All {len(rows)} devices in numbers"
    return _folded(name, table(name, headings, rows)) if rows else Html()


def _repeat(run: Run) -> Html:
    told = [
        joined(element("h3", what), element("pre", element("code", command), class_="command"))
        for what, command in commands(run)
    ]
    settings = element("pre", element("code", configs.dumps(run.config)), tabindex="0")
    headings, versions = ("what", "version"), run.versions.items()
    listed = table("Versions", headings, ((k, str(value)) for k, value in versions), headings)
    return _section(
        "Repeat this run",
        element("div", *told, class_="card"),
        _folded("Every setting (config.toml)", settings),
        _folded("Versions", listed),
    )
