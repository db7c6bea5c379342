"""Every link of the pages leads somewhere, and what they show of config files can be read."""

import re
import tomllib

from fedtiny import config

from .markdown import PAGES, anchors, blocks, links, name, prose

SOURCE_LINK = re.compile(r"\[`(?P<text>[\w.]+)`\]\((?P<path>[^)\s]+\.py)\)")


def test_links_lead_to_files_that_exist():
    for page in PAGES:
        targets = [link.partition("#")[0] for link in links(page)]
        missing = [target for target in targets if not (page.parent / target).exists()]
        assert missing == [], name(page)


def test_anchors_are_headings_of_their_page():
    for page in PAGES:
        for link in links(page):
            target, _, anchor = link.partition("#")
            there = page.parent / target if target else page
            if anchor and there.suffix == ".md":
                assert anchor in anchors(there), f"{name(page)}: {link}"


def test_code_that_a_link_names_is_defined_in_the_file():
    for page in PAGES:
        for link in SOURCE_LINK.finditer(prose(page)):
            source, named = page.parent / link["path"], link["text"]
            if named.endswith(".py"):
                assert str(source).endswith(named), f"{name(page)}: {link[0]}"
                continue
            for part in named.split("."):
                defined = re.search(rf"^ *(def|class) {part}\b", source.read_text(), re.M)
                assert defined, f"{name(page)}: {link[0]}"


def test_toml_in_a_page_can_be_read():
    sections = set(config.to_dict(config.Config())) | {"rounds", "width"}
    for page in PAGES:
        for block in blocks(page):
            values = tomllib.loads(block.text) if block.language == "toml" else {}
            if values and set(values) <= sections:
                assert config.from_dict(values) != config.Config(), name(page)
