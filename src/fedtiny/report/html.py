"""HTML from Python: every text is escaped unless it is HTML already."""

from collections.abc import Iterable, Sequence
from html import escape

from fedtiny.experiments.sheet import BEST, Entry, Sheet

VOID = ("meta", "br")


class Html(str):
    """Text that is HTML; only functions that escape what they are given make it."""

    __slots__ = ()


def element(name: str, *children: str, **attributes: str) -> Html:
    """An element; `class_` stands for class.

    >>> element("p", "1 < 2", element("b", "so"), class_="note")
    '<p class="note">1 &lt; 2<b>so</b></p>'
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    if name in VOID:
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Html:
    """Pieces one after the other; plain text among them is escaped."""
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in children))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()) -> Html:
    """A table that scrolls by itself if the screen is narrow; columns in `left` are words."""
    sides = ["text" if heading in left else "number" for heading in headings]
    head = [
        element("th", heading, scope="col", class_=side)
        for heading, side in zip(headings, sides, strict=True)
    ]
    body = [
        element(
            "tr",
            *(element("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)),
        )
        for row in rows
    ]
    inner = element("table", element("thead", element("tr", *head)), element("tbody", *body))
    return element("div", inner, class_="scroll", tabindex="0")


def sheet_table(sheet: Sheet) -> Html:
    """A comparison's table: best in bold, second underlined."""
    rows = [[_entry(entry) for entry in row] for section in sheet.sections for row in section]
    return table(sheet.headings, rows, sheet.left)


def _entry(entry: Entry) -> str:
    if entry.rank is None:
        return entry.text
    return element("b" if entry.rank == BEST else "u", entry.text)
