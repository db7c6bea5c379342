"""What stands in the pages: blocks, commands, links and anchors."""

import re
import shlex
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])

FENCE = re.compile(
    r"^(?P<fence>```+)(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence) *$", re.M | re.S
)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
LINK = re.compile(r"(?<!`)\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ +(?P<title>.+)$", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str


def name(page: Path) -> str:
    """The page as seen from the repository."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["language"].strip(),
            found["text"],
        )
        for found in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def command_lines(block: Block) -> list[str]:
    """The commands of a console block: lines after a prompt where there is one, else all lines."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def words(line: str) -> list[str]:
    """A command line as a shell splits it, without its comment.

    >>> words("fedtiny run --seed 1   # once more")
    ['fedtiny', 'run', '--seed', '1']
    """
    return shlex.split(line, comments=True)


def inline_commands(page: Path) -> Iterator[list[str]]:
    """Commands of fedtiny, make and python that are named within a sentence."""
    for code in INLINE.findall(prose(page)):
        line = " ".join(code.split())
        if re.match(r"(fedtiny|make|python) \S", line) and not re.search(r"[|\[\]…]|\.\.\.", line):
            yield words(line)


def links(page: Path) -> list[str]:
    """Where a page points to within the repository."""
    text = INLINE.sub("", prose(page))
    targets = [found["target"] for found in LINK.finditer(text)]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    return {slug(found["title"]) for found in HEADING.finditer(prose(page))}


def slug(title: str) -> str:
    """The anchor that code hosts and MyST give a heading.

    >>> slug("What is here, and `what` is not yet")
    'what-is-here-and-what-is-not-yet'
    """
    plain = unicodedata.normalize("NFKC", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).lower()
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
