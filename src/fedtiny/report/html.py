"""HTML as text that is escaped wherever it was not made here."""

from collections.abc import Iterable, Sequence
from html import escape


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


def table(
    name: str, headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str] = ()
) -> Html:
    """A table that scrolls by itself if the screen is narrow; columns in `left` are words."""
    sides = ["text" if heading in left else "number" for heading in headings]

    def row(name: str, cells: Sequence[str], **attributes: str) -> Html:
        pairs = zip(cells, sides, strict=True)
        return element("tr", *(element(name, c, **attributes, class_=side) for c, side in pairs))

    head = element("thead", row("th", headings, scope="col"))
    body = element("tbody", *(row("td", cells) for cells in rows))
    scrolling = {"class_": "scroll", "tabindex": "0", "role": "region", "aria_label": name}
    return element("div", element("table", head, body), **scrolling)
