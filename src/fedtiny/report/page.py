"""The page: one HTML file that needs nothing else and runs no script."""

from collections.abc import Sequence
from importlib.resources import files

from fedtiny import config as configs
from fedtiny.drawing import palette, svg
from fedtiny.experiments import table as tables
from fedtiny.report.comparison import Group, apart, comparison_figures, table_results
from fedtiny.report.facts import Fact, facts, task, title
from fedtiny.report.figure import Figure
from fedtiny.report.figures import figures
from fedtiny.report.html import Html, element, joined, sheet_table, table
from fedtiny.report.repeat import commands
from fedtiny.report.run import Run, number
from fedtiny.runs import formatting

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
ROUND_HEADINGS = ("round", "accuracy", "loss", "density", "swapped", "down", "up", "s", "missing")


def one_run(run: Run) -> Html:
    """The page of a run."""
    heading = joined((element("h1", title(run)), element("p", formatting.headline(run.config))))
    return _document(f"{title(run)} - {run.name}", heading, _run(run))


def several_runs(runs: Sequence[Run], groups: Sequence[Group]) -> Html:
    """The page of several runs: what they have in common first, then each by itself."""
    done = sum(run.finished for run in runs)
    heading = joined(
        (element("h1", f"{len(runs)} runs side by side"), element("p", f"{done} of them finished"))
    )
    parts = [_group(group, groups) for group in groups]
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
    single = _section("Each run by itself", *each)
    return _document(f"{len(runs)} runs", heading, joined((*parts, single)))


def _document(name: str, heading: Html, content: Html) -> Html:
    style = (files("fedtiny.report") / "page.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        Html('<meta name="color-scheme" content="light dark">'),
        element("title", f"{name} - fedtiny"),
        Html(f"<style>\n{style}\n{palette.rules()}\n</style>"),
    )
    body = element("body", element("header", heading), element("main", content))
    return Html(f'<!doctype html>\n<html lang="en">{head}{body}</html>\n')


def _run(run: Run) -> Html:
    sections = (
        _section(name, element("div", *map(_figure, drawn), class_="figures"))
        for name, drawn in figures(run).items()
    )
    return joined(
        (
            _notes(run.missing),
            element("dl", *map(_fact, facts(run)), class_="facts"),
            *sections,
            _rounds(run),
            _repeat(run),
        )
    )


def _group(group: Group, groups: Sequence[Group]) -> Html:
    results, left_out = table_results(group)
    drawn = [_figure(figure) for figure in comparison_figures(group)]
    parts = [_notes(left_out), element("div", *drawn, class_="figures")]
    if results.places:
        told = (
            "Mean over seeds; best in bold, second underlined. FLOPs as a share of the dense "
            "network's and memory by the paper's count, both of the costliest round; bytes of a "
            "device in a round, and in selection."
        )
        parts += [sheet_table(tables.sheet(results)), element("p", told, class_="caption")]
    if len(groups) == 1:
        return _section("Comparison", *parts)
    own = element("p", f"Here: {apart(group, groups)}.", class_="caption")
    return _section(f"Comparison: {_what(group.runs[0])}", own, *parts)


def _what(run: Run) -> str:
    fleet = run.config.fleet
    spread = formatting.spread(fleet)
    return f"{task(run)}, {fleet.devices} devices, {spread}, {run.config.rounds} rounds"


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


def _fact(fact: Fact) -> Html:
    value = element("dd", fact.value, class_="value")
    return element("div", element("dt", fact.name), value, element("dd", fact.beside))


def _figure(figure: Figure) -> Html:
    return element(
        "figure",
        element("h3", figure.title),
        Html(svg.inline(figure.canvas, figure.title)),
        element("figcaption", figure.caption),
        data_figure=figure.name,
    )


def _rounds(run: Run) -> Html:
    if not run.records:
        return Html()
    listed = table(ROUND_HEADINGS, (_round(record) for record in run.records), ("missing",))
    return _folded(f"All {len(run.records)} rounds in numbers", listed)


def _folded(name: str, content: Html) -> Html:
    return element("details", element("summary", name), content, class_="card")


def _round(record: dict[str, object]) -> list[str]:
    def told(key: str, form: str) -> str:
        value = number(record, key)
        return "" if value is None else format(value, form)

    failed = record.get("failed")
    moved = (number(record, f"bytes_{way}") for way in ("down", "up"))
    return [
        f"{(number(record, 'round') or 0) + 1:.0f}",
        told("accuracy", ".4f"),
        told("loss", ".3f"),
        told("density", ".4f"),
        told("mask_change", ",.0f"),
        *("" if value is None else formatting.size(value) for value in moved),
        told("seconds", ".1f"),
        ", ".join(map(str, failed)) if isinstance(failed, dict) else "",
    ]


def _repeat(run: Run) -> Html:
    told = [
        joined((element("h3", what), element("pre", element("code", command), class_="command")))
        for what, command in commands(run)
    ]
    settings = element("pre", element("code", configs.dumps(run.config)), tabindex="0")
    versions = table(
        ("what", "version"), ((key, str(value)) for key, value in run.versions.items()),
        ("what", "version"),
    )  # fmt: skip
    return _section(
        "Repeat this run",
        element("div", *told, class_="card"),
        _folded("Every setting (config.toml)", settings),
        _folded("Versions", versions),
    )
