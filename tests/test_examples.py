"""Every config that is shipped can be read, and every Markdown link leads somewhere."""

import re
from pathlib import Path

import pytest

from fedtiny import config
from fedtiny.compare import grid

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("name", ["cifar10.toml", "flaky_fleet.toml"])
def test_a_config_can_be_read(name):
    settings = config.resolve(config.load(ROOT / "examples" / name))
    assert settings.rounds is not None
    assert settings.method == "fedtiny"


def test_a_comparison_can_be_read():
    cells = grid.load(ROOT / "examples" / "compare.toml").cells()
    assert len(cells) == 2 + 2 * 4 * 2


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name
)
def test_links_between_pages_lead_somewhere(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
