"""What the site writes by itself: references, equations, and pages that show source files."""

import dataclasses
import re

import pytest

from fedtiny.cli.main import COMMANDS
from fedtiny.config import Config

from .markdown import PAGES, ROOT, name, prose

pytest.importorskip("sphinx")
pytest.importorskip("latex2mathml")


@pytest.fixture(autouse=True)
def _extensions(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "extensions"))


def test_the_reference_of_settings_has_every_flag_with_its_words():
    from settings_page import settings

    text = settings()
    for field in dataclasses.fields(Config):
        inner = field.default_factory
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            names = [f"{field.name}.{part.name}" for part in dataclasses.fields(inner)]
        else:
            names = [field.name]
        for setting in names:
            row = re.search(rf"^\| `--{setting.replace('_', '-')}` \|.*\| (.+) \|$", text, re.M)
            assert row, setting
            assert len(row[1]) > 8, setting


def test_the_reference_of_commands_has_every_command():
    from commands_page import commands

    text = commands()
    for command in COMMANDS:
        assert f"## fedtiny {command}\n" in text
        assert f"usage: fedtiny {command}" in text
    assert "### fedtiny data get\n" in text
    assert "--data.limit-train" in text


@pytest.mark.parametrize("page", [p for p in PAGES if "$$" in p.read_text()], ids=name)
def test_every_equation_becomes_mathml(page):
    from latex2mathml.converter import convert

    text = prose(page)
    shown = re.findall(r"\$\$(.+?)\$\$", text, re.S)
    within = re.findall(r"\$([^$\n]+)\$", re.sub(r"\$\$.+?\$\$", "", text, flags=re.S))
    assert len(shown) > 5
    for equation in [*shown, *within]:
        drawn = convert(equation)
        assert "\\" not in drawn, equation


def test_a_source_page_marks_what_the_file_defines(monkeypatch):
    import source_pages

    rewritten = ["see [`grow_and_drop`](../src/fedtiny/sparse/adjust.py) and [it](../LICENSE)"]
    monkeypatch.setattr(source_pages, "shown", set())
    source_pages.rewrite(None, "page", rewritten)
    assert "(source:src/fedtiny/sparse/adjust.py#grow_and_drop)" in rewritten[0]
    pages = {page: context["body"] for page, context, _ in source_pages.pages(None)}
    assert set(pages) == {"source/LICENSE", "source/src/fedtiny/sparse/adjust.py"}
    assert 'id="grow_and_drop"' in pages["source/src/fedtiny/sparse/adjust.py"]
