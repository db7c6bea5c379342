"""The words of the pages: plain, a table or picture first, and provenance last."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .markdown import PAGES, ROOT, name

sys.path.insert(0, str(ROOT / "docs" / "extensions"))
import prose

sys.path.pop(0)

OTHERS = ("index.md", "changelog.md", "contributing.md")
"""Pages that need no sentence on who reads them: the first one, and whole files."""


@pytest.mark.parametrize("page", prose.PAGES, ids=name)
def test_a_page_is_written_as_agreed(page):
    assert list(prose.complaints(page)) == []


@pytest.mark.parametrize("page", [p for p in prose.PAGES if p.parent.name == "docs"], ids=name)
def test_a_page_says_first_who_needs_it(page):
    if page.name not in OTHERS:
        assert re.match(r"# .+\n\nFor \w", page.read_text()), "begin with: For readers who ..."


def test_words_before_the_first_table_are_counted():
    late = "# Title\n\n" + "word " * 121
    for first in ("| a |\n", "![a](b)\n", "```\ncode\n```\n"):
        assert len(list(prose.too_late(f"{late}\n{first}"))) == 1
        assert list(prose.too_late(f"# Title\n\nword\n{first}")) == []


def test_history_and_hype_are_found_outside_of_code_and_provenance():
    text = "It is seamless.\n`no longer`\nIt is no longer so.\n\n## Provenance\n\nno longer\n"
    assert list(prose.unwanted(text)) == [
        "line 1: 'seamless' (no hype)",
        "line 3: 'no longer' (history)",
    ]


def test_provenance_before_the_end_is_found():
    text = "# Results\n\nOn an H200, commit 00549b9.\n\n## Provenance\n\nOn an H200.\n"
    assert list(prose.early_provenance(text)) == ["line 3: 'H200' belongs under '## Provenance'"]
    assert len(list(prose.early_provenance(text + "\n## More\n"))) == 2


@pytest.mark.skipif(not shutil.which("codespell", path=Path(sys.executable).parent), reason="extra")
def test_the_pages_are_spelled_right():
    pages = [str(page) for page in PAGES if page.name != "CHANGELOG.md"]
    done = subprocess.run(
        [Path(sys.executable).with_name("codespell"), *pages],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
