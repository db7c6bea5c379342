"""Checks of the words of the pages, beside codespell: `python docs/extensions/prose.py`.

A page shows a table, a picture or code within its first 120 words, says things in plain American
English and in the present tense, and keeps where numbers come from for its end.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
WHOLE_FILES = ("changelog.md", "contributing.md")
"""Pages that are another file."""
README_LINES = 120
WORDS_BEFORE = 120
"""Words that may stand before the first table, picture or code."""

PLAIN = {
    r"whose sake|for the sake of": "say why",
    r"whilst|amongst|whereby|thereof|hence\b": "while, among, so",
    r"seamless(?:ly)?|effortless(?:ly)?|blazing(?:ly)?|cutting-edge|game-chang\w+": "no hype",
    r"state[- ]of[- ]the[- ]art|world-class|revolutionary|unparalleled|supercharge\w*": "no hype",
    r"(?:is|are) told\b|told of|taught us|in truth|said plainly": "say is reported, is listed",
    r"of (?:ours|somebody else's|their own choosing)\b": "say whose",
}
HISTORY = {
    r"used to(?= (?:be|have|do|take|need|hold|give|say)\b)": "history",
    r"no longer|any ?more\b|since then|as before\b|formerly|previously|back then": "history",
    r"nowadays|now\b(?! on)": "history",
    r"(?:an|the) (?:earlier|older) (?:run|machine|code)\b": "history",
}
"""What a page that describes the program does not say: how it came about."""
PROVENANCE = re.compile(
    r"\bcommits?\b|\bdigest\b|\bH200\b|\bEPYC\b|\bAVX-512\b|\btorch \d|\bCUDA \d|\bgcc \d"
    r"|onnxruntime \d|wall[- ]clock|\b(?:this|that|another|other|same|quiet|busy|slow) machines?\b"
    r"|\b[0-9a-f]{12}\b",
    re.I,
)
MEASURED = ("results.md", "performance.md", "gpu.md")
"""Pages whose numbers have their provenance in a last section, and nowhere before."""
LAST = "## Provenance"

FENCE = re.compile(r"^(```+|:::+)[^\n]*\n.*?^\1 *$", re.M | re.S)
FIRST = re.compile(r"^```|^\|.*\|$|^!\[|^<img|^<!-- generated|^\$\$$", re.M)
INLINE = re.compile(r"`[^`\n]+`")


def main() -> int:
    """Print what is wrong; returns 1 if something is."""
    found = [f"{page.relative_to(ROOT)}: {line}" for page in PAGES for line in complaints(page)]
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return bool(found)


def complaints(page: Path) -> Iterator[str]:
    """What is wrong with a page."""
    text = page.read_text(encoding="utf-8")
    if page.name in WHOLE_FILES:
        return
    yield from too_late(text)
    yield from unwanted(text)
    if page.name in MEASURED:
        yield from early_provenance(text)
    if page.name == "README.md" and text.count("\n") > README_LINES:
        yield f"{text.count(chr(10))} lines; at most {README_LINES}"


def too_late(text: str) -> Iterator[str]:
    """How many words stand before the first table, picture or code, if too many do.

    >>> list(too_late("# Title" + chr(10) + "word " * 121 + chr(10) + "| a |"))
    ['121 words before the first table, picture or code; at most 120']
    """
    title = re.compile(r"(?:# [^\n]*\n)?").match(text)
    body = text[title.end() :] if title else text
    first = FIRST.search(body)
    before = len(body[: first.start()].split()) if first else len(body.split())
    if before > WORDS_BEFORE:
        yield f"{before} words before the first table, picture or code; at most {WORDS_BEFORE}"


def unwanted(text: str) -> Iterator[str]:
    """Words that are not plain, and history, outside of code."""
    told = text.partition(f"\n{LAST}\n")[0].count("\n") + 1
    for number, line in enumerate(prose_lines(text), 1):
        for pattern, advice in (PLAIN if number > told else PLAIN | HISTORY).items():
            if match := re.search(rf"\b(?:{pattern})", line, re.I):
                yield f"line {number}: {match[0].strip()!r} ({advice})"


def early_provenance(text: str) -> Iterator[str]:
    """Machines, versions and commits that stand before the last section."""
    before, heading, last = text.partition(f"\n{LAST}\n")
    if not heading or "\n## " in last:
        yield f"{LAST!r} must be its last section"
    for number, line in enumerate(prose_lines(before), 1):
        if match := PROVENANCE.search(line):
            yield f"line {number}: {match[0]!r} belongs under {LAST!r}"


def prose_lines(text: str) -> list[str]:
    """The lines of a page with code blanked out, so that numbers of lines stay."""
    bare = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    return INLINE.sub("", bare).split("\n")


if __name__ == "__main__":
    sys.exit(main())
