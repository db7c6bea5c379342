"""An experiment as a table, ours beside the paper's: for a terminal, as CSV, Markdown, LaTeX."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import JustifyMethod
from rich.table import Table

from fedtiny.experiments.places import Place, along, in_order
from fedtiny.experiments.quantities import QUANTITIES, axis_label, with_axis
from fedtiny.experiments.results import MISSING, Results
from fedtiny.files import make_folder, write_atomically
from fedtiny.runs import formatting

HEADING = 8  # characters of a heading in a line of the terminal, if no word is longer
BEST, SECOND = 0, 1
Ranks = dict[str, int | None]
Marks = tuple[str, str]
"""Around the best, and around the second best."""
PLAIN: Marks = ("{}", "{}")
RICH: Marks = ("[bold]{}[/bold]", "[underline]{}[/underline]")
MARKDOWN: Marks = ("**{}**", "*{}*")
LATEX: Marks = (r"\textbf{{{}}}", r"\underline{{{}}}")


@dataclass(frozen=True)
class Entry:
    """A figure as text; the best and the second best are marked, `beside` never is."""

    text: str
    rank: int | None = None
    beside: str = ""

    def marked(self, marks: Marks) -> str:
        """The entry in a form that has these marks."""
        text = self.text if self.rank is None else marks[self.rank].format(self.text)
        return f"{text} {self.beside}" if self.beside else text


Row = tuple[Entry, ...]


@dataclass(frozen=True)
class Sheet:
    """A table, in sections; the columns named in `left` are words, the others figures."""

    title: str
    headings: tuple[str, ...]
    sections: tuple[tuple[Row, ...], ...]
    left: tuple[str, ...] = ()
    spare: int = 0
    """Columns at the end that a narrow terminal may leave out."""

    def lines(self, marks: Marks) -> list[list[str]]:
        """Every row as text."""
        return [[e.marked(marks) for e in row] for section in self.sections for row in section]


def sheet(results: Results) -> Sheet:
    """The table; the paper's values stand in columns of their own, or in brackets."""
    experiment, axes = results.experiment, results.experiment.table.rows
    headings, rows = _across(results) if experiment.table.columns else _down(results)
    named = [a for a in axes if any(isinstance(p.at[a].value, str) for p in results.places)]
    title = f"{experiment.title} ({experiment.source})" if experiment.source else experiment.title
    together = groupby(rows, key=lambda row: [entry.text for entry in row[: len(axes) - 1]])
    return Sheet(
        title,
        (*map(axis_label, (*axes, *experiment.table.beside)), *headings),
        tuple(tuple(group) for _, group in together),
        tuple(map(axis_label, (*named, *experiment.table.beside))),
        experiment.table.spare,
    )


def _down(results: Results) -> tuple[list[str], list[Row]]:
    """A row for each place, and the paper's values in columns of their own."""
    layout, ranks, headings, rows = results.experiment.table, _ranks(results), [], []
    beside = [q for q in layout.values if any(results.printed(p, q) for p in results.places)]
    for quantity in layout.values:
        headings += [QUANTITIES[quantity].label, *(["paper"] if quantity in beside else [])]
    for place in in_order(results.places, layout.rows):
        row = [Entry(place.at[axis].label) for axis in (*layout.rows, *layout.beside)]
        for quantity in layout.values:
            row.append(_ours(results, place, quantity, ranks))
            if quantity in beside:
                printed = results.printed(place, quantity)
                row.append(Entry(printed.text if printed else ""))
        rows.append(tuple(row))
    return headings, rows


def _across(results: Results) -> tuple[list[str], list[Row]]:
    """Columns for an axis, with the paper's value in brackets behind ours."""
    layout, ranks, rows = results.experiment.table, _ranks(results), []
    (quantity,), (column,) = layout.values, layout.columns
    across = along(results.places, column)
    at_place = {place.where(*layout.rows, column): place for place in results.places}
    firsts = {place.where(*layout.rows): place for place in results.places}
    for first in in_order(list(firsts.values()), layout.rows):
        row = [Entry(first.at[axis].label) for axis in layout.rows]
        for at in across:
            place = at_place.get((*first.where(*layout.rows), at.value))
            printed = results.printed(place, quantity) if place else None
            ours = _ours(results, place, quantity, ranks) if place else Entry("")
            row.append(replace(ours, beside=f"({printed.text})" if printed else ""))
        rows.append(tuple(row))
    return [with_axis(column, at.label) for at in across], rows


def _ours(results: Results, place: Place, quantity: str, ranks: Ranks) -> Entry:
    value = results.ours(place, quantity)
    if value is None:
        return Entry(MISSING)
    text = QUANTITIES[quantity].show(value.mean)
    if quantity != "accuracy":
        return Entry(text)
    spread = f" ± {value.spread:.3f}" if value.seeds > 1 else ""
    return Entry(text + spread, ranks.get(place.stem))


def _ranks(results: Results) -> Ranks:
    """The best and second best accuracy among those that differ on one axis only.

    A run with one seed is ranked, but not marked: another seed may turn the order around.
    """
    best_of = results.experiment.table.best_of
    if best_of is None:
        return {}
    others = [axis.name for axis in results.experiment.axes if axis.name != best_of]
    groups: dict[tuple[Any, ...], list[Place]] = {}
    for place in results.places:
        if not place.dense:
            groups.setdefault(place.where(*others), []).append(place)
    found: Ranks = {}
    for group in groups.values():
        values = [results.ours(place, "accuracy") for place in group]
        own = ranks(value.mean if value else None for value in values)
        for place, value, rank in zip(group, values, own, strict=True):
            if value and value.seeds > 1:
                found[place.stem] = rank
    return found


def ranks(values: Iterable[float | None]) -> list[int | None]:
    """Which values are the best and the second best of several, as the paper marks them.

    >>> ranks([0.1, None, 0.5, 0.3])
    [None, None, 0, 1]
    """
    listed = list(values)
    present = [place for place, value in enumerate(listed) if value is not None]
    if len(present) < 2:
        return [None] * len(listed)
    ordered = sorted(present, key=lambda place: -(listed[place] or 0.0))[:2]
    return [ordered.index(place) if place in ordered else None for place in range(len(listed))]


def terminal(sheet: Sheet, width: int) -> Table:
    """The table for a terminal of so many columns: best in bold, second underlined.

    A figure is never cut: if room is short, columns stand closer, then those that can be spared
    are left out, then lines are broken.
    """
    table = formatting.titled(sheet.title)
    headings = [wrap(heading, HEADING, break_long_words=False) for heading in sheet.headings]
    columns = zip(headings, *sheet.lines(PLAIN), strict=True)
    widths = [max(map(len, (*heading, *texts))) for heading, *texts in columns]
    close, most = sum(widths) + 2 * len(widths) + 1 > width, len(widths) - sheet.spare
    while len(widths) > most and sum(widths) + len(widths) + 1 > width:
        widths.pop()
    table.pad_edge, table.padding = False, (0, 0 if close else 1, 0, 0)
    for name, heading, least in zip(sheet.headings, headings, widths, strict=False):
        side: JustifyMethod = "left" if name in sheet.left else "right"
        table.add_column("\n".join(heading), justify=side, no_wrap=True, min_width=least)
    for section in sheet.sections:
        for row in section:
            ends = len(section) > 1 and row is section[-1]
            shown = row[: len(widths)]
            table.add_row(*(entry.marked(RICH) for entry in shown), end_section=ends)
    if left_out := sheet.headings[len(widths) :]:
        table.caption, table.caption_justify = f"no room for: {', '.join(left_out)}", "left"
    return table


def markdown(sheet: Sheet) -> str:
    """The table in Markdown: best in bold, second in italics."""
    rules = [":--" if heading in sheet.left else "--:" for heading in sheet.headings]
    lines = [list(sheet.headings), rules, *sheet.lines(MARKDOWN)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(results: Results) -> str:
    """The table in Markdown with its title and notes, to be pasted into a page."""
    made = sheet(results)
    told = "".join(f"- {note}\n" for note in results.notes())
    return f"**{made.title}**\n\n{markdown(made)}\n{told}"


def latex(sheet: Sheet) -> str:
    """The table in LaTeX (booktabs): best in bold, second underlined."""

    def line(cells: Iterable[str]) -> str:
        text = " & ".join(cells)
        for plain, escaped in (("_", r"\_"), ("%", r"\%"), ("±", r"$\pm$")):
            text = text.replace(plain, escaped)
        return text + " \\\\\n"

    columns = "".join("l" if heading in sheet.left else "r" for heading in sheet.headings)
    sections = [
        "".join(line(entry.marked(LATEX) for entry in row) for row in section)
        for section in sheet.sections
    ]
    return (
        rf"\begin{{tabular}}{{{columns}}}" + "\n\\toprule\n"
        f"{line(sheet.headings)}\\midrule\n"
        + "\\midrule\n".join(sections)
        + "\\bottomrule\n\\end{tabular}\n"
    )


def lines(results: Results, quantities: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Every figure in full, a line for each place: these quantities, or the table's.

    With the table's, the paper's values stand beside them.
    """
    found = []
    for place in in_order(results.places, [axis.name for axis in results.experiment.axes]):
        line: dict[str, Any] = {} if quantities else {"cell": place.stem}
        line |= {name: at.value for name, at in place.at.items()}
        line["seeds"] = len(results.found.get(place.stem, []))
        for quantity in quantities or results.experiment.table.values:
            ours, printed = results.ours(place, quantity), results.printed(place, quantity)
            line[quantity] = ours.mean if ours else None
            if quantity == "accuracy":
                line["spread"] = ours.spread if ours else None
            if not quantities:
                line[f"paper_{quantity}"] = printed.number if printed else None
                line[f"source_{quantity}"] = printed.source if printed else None
        found.append(line)
    return found


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every figure in full, for other programs."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(results: Results, folder: Path, quantities: Sequence[str] = ()) -> list[Path]:
    """Write the table in every form; returns the paths.

    In full are these quantities of ours, or the table's beside the paper's with all notes.
    """
    made = sheet(results)
    texts = {
        "table.csv": csv_text(lines(results, quantities)),
        "table.md": markdown(made) if quantities else page(results),
        "table.tex": latex(made),
    }
    make_folder(folder)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]
