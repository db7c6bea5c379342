"""A table of text in four forms: in the terminal, as CSV, Markdown and LaTeX."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import JustifyMethod
from rich.table import Table

from fedtiny.files import write_atomically
from fedtiny.runs import formatting

BEST, SECOND = 0, 1
HEADING = 8  # characters of a heading in a line of the terminal, if no word is longer

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


Section = tuple[tuple[Entry, ...], ...]
"""Rows that stand together."""


@dataclass(frozen=True)
class Sheet:
    """A table, in sections; the columns named in `left` are words, the others figures."""

    title: str
    headings: tuple[str, ...]
    sections: tuple[Section, ...]
    left: tuple[str, ...] = ()

    def lines(self, marks: Marks) -> list[list[str]]:
        """Every row as text."""
        return [[e.marked(marks) for e in row] for section in self.sections for row in section]


def ranks(values: Iterable[float | None]) -> list[int | None]:
    """Which values are the best and the second best, as the paper marks them.

    >>> ranks([0.1, None, 0.5, 0.3])
    [None, None, 0, 1]
    """
    listed = list(values)
    present = [place for place, value in enumerate(listed) if value is not None]
    ordered = sorted(present, key=lambda place: -(listed[place] or 0.0))[:2]
    return [ordered.index(place) if place in ordered else None for place in range(len(listed))]


def terminal(sheet: Sheet, width: int) -> Table:
    """The table for a terminal of so many columns: best in bold, second underlined.

    A figure is never cut: if room is short, columns stand closer, then lines are broken.
    """
    table = formatting.titled(sheet.title)
    headings = [wrap(heading, HEADING, break_long_words=False) for heading in sheet.headings]
    columns = zip(headings, *sheet.lines(PLAIN), strict=True)
    widths = [max(map(len, (*heading, *texts))) for heading, *texts in columns]
    close = sum(widths) + 2 * len(widths) + 1 > width
    table.pad_edge, table.padding = False, (0, 0 if close else 1, 0, 0)
    for name, heading, least in zip(sheet.headings, headings, widths, strict=True):
        side: JustifyMethod = "left" if name in sheet.left else "right"
        table.add_column("\n".join(heading), justify=side, no_wrap=True, min_width=least)
    for section in sheet.sections:
        for row in section:
            ends = len(section) > 1 and row is section[-1]
            table.add_row(*(entry.marked(RICH) for entry in row), end_section=ends)
    return table


def markdown(sheet: Sheet) -> str:
    """The table in Markdown: best in bold, second in italics."""
    rules = [":--" if heading in sheet.left else "--:" for heading in sheet.headings]
    lines = [list(sheet.headings), rules, *sheet.lines(MARKDOWN)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(sheet: Sheet) -> str:
    """The table in LaTeX (booktabs): best in bold, second underlined."""
    columns = "".join("l" if heading in sheet.left else "r" for heading in sheet.headings)
    sections = [
        "".join(_latex_line(e.marked(LATEX) for e in row) for row in section)
        for section in sheet.sections
    ]
    return (
        rf"\begin{{tabular}}{{{columns}}}" + "\n\\toprule\n"
        f"{_latex_line(sheet.headings)}\\midrule\n"
        + "\\midrule\n".join(sections)
        + "\\bottomrule\n\\end{tabular}\n"
    )


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every figure in full, for other programs."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write(
    folder: Path, sheet: Sheet, lines: Sequence[Mapping[str, Any]], page: str | None = None
) -> list[Path]:
    """Write table.csv (the lines), table.md (or a page around it) and table.tex."""
    texts = {
        "table.csv": csv_text(lines),
        "table.md": markdown(sheet) if page is None else page,
        "table.tex": latex(sheet),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in texts]


def _latex_line(cells: Iterable[str]) -> str:
    line = " & ".join(cells)
    for plain, escaped in (("_", r"\_"), ("%", r"\%"), ("±", r"$\pm$")):
        line = line.replace(plain, escaped)
    return line + " \\\\\n"
