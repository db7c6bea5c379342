"""The page tells the run's numbers, needs nothing from elsewhere, and trusts no text."""

import json
import re
from html.parser import HTMLParser

import pytest

from fedtiny.report.html import Html, element, joined, table
from fedtiny.report.run import read
from fedtiny.report.write import write_page
from fedtiny.runs import formatting
from fedtiny.runs.folder import FORMAT, RunFolder

from ..runs.tiny import lines
from .conftest import EVIL

VOID = {"meta", "br"}


class Outline(HTMLParser):
    """Every element, checked to be closed in turn, and all text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.attributes, self.text = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page_of(*paths, out):
    return write_page([read(RunFolder(path)) for path in paths], out / "page.html").read_text()


def test_the_numbers_are_those_of_the_result(finished, tmp_path):
    result = json.loads((finished / "result.json").read_text())
    text = "".join(Outline(page_of(finished, out=tmp_path)).text)
    assert f"Accuracy{result['accuracy']:.4f}test loss {result['loss']:.3f}" in text
    assert f"Density{result['density']:.4f}{result['kept_weights']:,} of" in text
    assert f"of {result['prunable_weights']:,} weights" in text
    assert f"Model size{formatting.size(result['model_bytes'])}as sent to a device" in text
    assert f"Rounds{result['rounds']}finished" in text
    evaluation = sum(record["bytes_evaluation"] for record in lines(finished))
    every = formatting.size(result["bytes_down"] + result["bytes_up"] + evaluation)
    assert (
        f"Traffic{every}{formatting.size(result['bytes_down'])} down, "
        f"{formatting.size(result['bytes_up'])} up, {formatting.size(evaluation)} to evaluate"
        in text
    )


def test_the_page_needs_nothing_and_runs_nothing(finished, tmp_path):
    page = page_of(finished, out=tmp_path)
    outline = Outline(page)
    assert outline.open == []
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {*outline.elements}
    names = {name for _, name, _ in outline.attributes}
    assert not {"src", "href", "style"} & names
    assert not any(name.startswith("on") for name in names)
    assert re.findall(r"https?://[^\"' ]*", page) == ["http://www.w3.org/2000/svg"] * 16
    assert "default-src 'none'" in page
    assert "url(" not in page
    assert "@import" not in page


def test_names_cannot_break_out_of_the_page(evil, tmp_path):
    versions = evil / "versions.json"
    versions.write_text(json.dumps({"format": FORMAT, EVIL: EVIL}))
    page = page_of(evil, out=tmp_path)
    outline = Outline(page)
    assert not {"script", "img"} & {*outline.elements}
    assert not any(name.startswith("on") for _, name, _ in outline.attributes)
    assert EVIL in "".join(outline.text), "told as text"
    assert outline.open == []


def test_metrics_cannot_break_out_of_the_page(finished, tmp_path):
    evil = {"round_number": 1, "accuracy": EVIL, "densities": {EVIL: 0.1}, "adjusted": {EVIL: 3},
            "grown": {EVIL: 3}, "dropped": EVIL, "failed": {EVIL: EVIL}, "loss": [EVIL],
            "answered": EVIL, "seconds": EVIL}  # fmt: skip
    (finished / "metrics.jsonl").write_text(json.dumps(evil) + "\n")
    (finished / "result.json").write_text(json.dumps({"accuracy": EVIL, "density": {EVIL: 1}}))
    outline = Outline(page_of(finished, out=tmp_path))
    assert "script" not in outline.elements
    assert outline.open == []


def test_the_page_says_what_is_missing(stopped, tmp_path):
    text = "".join(Outline(page_of(stopped, out=tmp_path)).text)
    assert "What is missing" in text
    assert f"fedtiny resume {stopped}" in text
    assert "Rounds2 of 3" in text


def test_several_runs_are_compared_first(several, tmp_path):
    paths = sorted(several.iterdir())
    page = page_of(*paths, out=tmp_path)
    text = "".join(Outline(page).text)
    results = [several / f"fedtiny-d0.3-s{seed}" / "result.json" for seed in (0, 1)]
    accuracies = [json.loads(path.read_text())["accuracy"] for path in results]
    assert f"{sum(accuracies) / 2:.4f} ±" in text
    assert "6 runs, all finished" in text
    assert page.index('data-figure="accuracy_over_density"') < page.index('data-figure="partition"')
    for path in paths:
        assert path.name in text
    assert re.search(r"<b>0\.\d{4}", page), "the best of a density is marked"


def test_text_is_escaped_unless_it_is_html_already():
    assert element("p", "<b>", Html("<i>x</i>")) == "<p>&lt;b&gt;<i>x</i></p>"
    assert element("p", "", title='"') == '<p title="&quot;"></p>'
    assert joined("a<", Html("b<")) == "a&lt;b<"
    assert '<td class="text">&lt;script&gt;' in table("x", ("x",), [["<script>"]], left=("x",))


@pytest.mark.parametrize("rounds", [1, 4])
def test_a_page_is_the_same_when_made_again(finished, tmp_path, rounds):
    kept = (finished / "metrics.jsonl").read_text().splitlines()[:rounds]
    (finished / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    assert page_of(finished, out=tmp_path) == page_of(finished, out=tmp_path)
