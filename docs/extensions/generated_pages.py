"""Pages that are written anew with every build, so that they cannot go stale."""

from collections.abc import Callable

from commands_page import commands
from notebook_page import notebook
from settings_page import settings
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

MARK = "<!-- generated -->"
WRITERS: dict[str, Callable[[], str]] = {
    "cli": commands,
    "notebook": notebook,
    "settings": settings,
}


def write(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put what is generated where the page has its mark; what follows is for the repository."""
    if docname in WRITERS:
        before, _, _ = source[0].partition(MARK)
        source[0] = f"{before}\n{WRITERS[docname]()}"


def setup(app: Sphinx) -> ExtensionMetadata:
    """Listen to what Sphinx reads."""
    app.connect("source-read", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
