"""Every link of the pages leads somewhere, and what they show of config files can be read."""

import re
import tomllib

import pytest

from fedtiny import config

from .markdown import PAGES, anchors, blocks, links, name, prose

SOURCE_LINK = re.compile(r"\[`(?P<text>[\w.]+)`\]\((?P<path>[^)\s]+\.py)\)")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_that_exist(page):
    targets = [link.partition("#")[0] for link in links(page)]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_anchors_are_headings_of_their_page(page):
    missing = []
    for link in links(page):
        target, _, anchor = link.partition("#")
        there = page.parent / target if target else page
        if anchor and there.suffix == ".md" and anchor not in anchors(there):
            missing.append(link)
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_that_a_link_names_is_defined_in_the_file(page):
    for link in SOURCE_LINK.finditer(prose(page)):
        source = page.parent / link["path"]
        if link["text"].endswith(".py"):
            assert str(source).endswith(link["text"])
            continue
        for part in link["text"].split("."):
            assert re.search(rf"^ *(def|class) {part}\b", source.read_text(), re.M), link[0]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_toml_in_a_page_can_be_read(page):
    sections = set(config.to_dict(config.Config())) | {"rounds", "width"}
    for block in blocks(page):
        if block.language == "toml":
            values = tomllib.loads(block.text)
            if set(values) <= sections:
                assert config.from_dict(values) != config.Config()
