"""docs/cost.md shows the figures of today's code."""

from pathlib import Path

from .figures import markdown

DOCS = Path(__file__).parents[2] / "docs" / "cost.md"


def test_the_docs_hold_the_tables_that_the_command_prints():
    assert markdown() in DOCS.read_text(encoding="utf-8")
