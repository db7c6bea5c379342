"""Links to files of the repository lead to pages of the site that show those files.

A page says `[grow_and_drop](../src/fedtiny/sparse/adjust.py)`, which works where the repository is
browsed. In the site the same link opens the file, at the definition that its text names.
"""

import html
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.typing import ExtensionMetadata

FOLDER = "source"
ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\(\.\./(?P<path>[^)#\s]*)(?P<fragment>#[^)\s]*)?\)")
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "examples/digits.ipynb": "notebook.md",
}
BINARY = {".npz", ".so"}
shown: set[Path] = set()


def rewrite(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn links out of the docs folder into links within the site."""
    source[0] = LINK.sub(_within_site, source[0])


def _within_site(link: re.Match[str]) -> str:
    text, path = link["text"], link["path"].rstrip("/")
    if path in PAGES:
        return f"[{text}]({PAGES[path]})"
    if path.startswith("docs/"):
        return f"[{text}]({path.removeprefix('docs/')}{link['fragment'] or ''})"
    shown.add(ROOT / path)
    return f"[{text}](source:{path}#{_definition(ROOT / path, text.strip('`'))})"


def _definition(path: Path, name: str) -> str:
    """The name, if the file defines it; else the top of the page."""
    return name if path.suffix == ".py" and name in _definitions(path) else ""


def _definitions(path: Path) -> dict[str, int]:
    """The line of everything that a Python file defines, by qualified name."""
    tags = ModuleAnalyzer.for_file(str(path), path.stem).find_tags()
    return {name: start for name, (_, start, _) in tags.items()}


def of_object(domain: str, info: dict[str, str]) -> str | None:
    """Where the reference of the API finds an object's source."""
    module: Any = sys.modules.get(info["module"])
    thing = module
    for part in info["fullname"].split("."):
        thing = getattr(thing, part, None)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        module = sys.modules[thing.__module__]
    path = Path(module.__file__)
    if not path.is_relative_to(ROOT):
        return None
    shown.add(path)
    name = _definition(path, getattr(thing, "__qualname__", info["fullname"]))
    return f"{FOLDER}/{path.relative_to(ROOT)}.html#{name}"


def pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file and folder that something links to."""
    for folder in [path for path in shown if path.is_dir()]:
        shown.update(_files(folder))
    for path in sorted(shown):
        name = path.relative_to(ROOT)
        body = _listing(path) if path.is_dir() else _file(path)
        heading = f"<h1>{html.escape(str(name))}</h1>"
        yield f"{FOLDER}/{name}", {"title": str(name), "body": heading + body}, "page.html"


def _files(folder: Path) -> list[Path]:
    """Those that hold text."""
    files = (path for path in folder.iterdir() if path.is_file() and path.suffix not in BINARY)
    return sorted(path for path in files if not path.name.startswith("."))


def _listing(folder: Path) -> str:
    items = [
        f'<li><a href="{folder.name}/{path.name}.html">{html.escape(path.name)}</a></li>'
        for path in _files(folder)
    ]
    return f"<ul>{''.join(items)}</ul>"


def _file(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    try:
        lexer = get_lexer_for_filename(path.name, stripnl=False)
    except ClassNotFound:
        lexer = TextLexer()
    lines = highlight(text, lexer, HtmlFormatter(nowrap=True)).splitlines()
    marks = _definitions(path) if path.suffix == ".py" else {}
    for name, line in marks.items():
        lines[line - 1] = f'<span class="definition" id="{name}">{lines[line - 1]}</span>'
    code = "\n".join(lines)
    return f'<div class="highlight source"><pre>{code}\n</pre></div>'


def setup(app: Sphinx) -> ExtensionMetadata:
    """Listen to what Sphinx reads and writes."""
    app.connect("source-read", rewrite, priority=900)
    app.connect("html-collect-pages", pages)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
