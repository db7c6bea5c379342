"""HTML from Python: every text is escaped unless it is HTML already."""

from collections.abc import Iterable, Sequence
from html import escape

from fedtiny.compare.sheet import BEST, Sheet

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
    """A table that scrolls by itself where the screen is narrow; columns in `left` are words."""
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
    rows = [[_entry(text, rank) for text, rank in row] for row in _entries(sheet)]
    return table(sheet.headings, rows, sheet.left)


def _entries(sheet: Sheet) -> list[list[tuple[str, int | None]]]:
    return [
        [(entry.marked(lambda text, _: text), entry.rank) for entry in row]
        for section in sheet.sections
        for row in section
    ]


def _entry(text: str, rank: int | None) -> str:
    if rank is None:
        return text
    return element("b" if rank == BEST else "u", text)
