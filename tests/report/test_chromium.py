"""The page in a real browser: nothing complains, nothing is fetched, nothing sticks out."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedtiny.report.run import read
from fedtiny.report.write import write_page
from fedtiny.runs.folder import RunFolder

from .browser import BINARY, browser

pytestmark = pytest.mark.skipif(BINARY is None, reason="needs Chromium (Debian: chromium)")

SCREENS = [(1280, False), (1280, True), (390, False), (390, True)]
STICKING_OUT = """
[...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, pre, svg")
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName)
"""
TEXT_OUTSIDE = """
[...document.querySelectorAll("svg text")].filter(t => {
  const own = t.getBoundingClientRect(), whole = t.ownerSVGElement.getBoundingClientRect();
  return own.width && (own.left < whole.left - 2 || own.right > whole.right + 2);
}).map(t => t.closest("figure").dataset.figure + ": " + t.textContent)
"""
TEXT_OVERLAPS = """
[...document.querySelectorAll("svg")].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")].filter(t => !t.closest(".tell"));
  const boxes = texts.map(t => [t, t.getBoundingClientRect()]);
  return boxes.flatMap(([t, a], i) => boxes.slice(i + 1).filter(([u, b]) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1.5 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5
  ).map(([u]) => `${svg.closest("figure").dataset.figure}: ${t.textContent} | ${u.textContent}`));
})
"""
SMALLEST = """
Math.min(...[...document.querySelectorAll("svg text")].map(t => {
  const svg = t.ownerSVGElement, shown = svg.getBoundingClientRect().width;
  return parseFloat(getComputedStyle(t).fontSize) * shown / svg.viewBox.baseVal.width;
}))
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def large(_finished_once, tmp_path_factory):
    """The run as if it had 300 rounds, 100 devices, 40 candidates and classes with long names."""
    path = shutil.copytree(_finished_once, tmp_path_factory.mktemp("large") / "run")
    record = json.loads((path / "metrics.jsonl").read_text().splitlines()[0])
    lines = (json.dumps({**record, "round_number": number}) for number in range(1, 301))
    (path / "metrics.jsonl").write_text("\n".join(lines))
    split = load_file(path / "partition.safetensors")
    split["table"] = np.random.default_rng(0).integers(0, 900, (100, 12))
    save_file(split, path / "partition.safetensors")
    about = json.loads((path / "about.json").read_text())
    about["classes"] = [f"a long name of class {number}" for number in range(12)]
    (path / "about.json").write_text(json.dumps(about))
    found = json.loads((path / "selection.json").read_text())
    found["selection"]["losses"] = [2 + number / 100 for number in range(40)]
    (path / "selection.json").write_text(json.dumps(found))
    return path


@pytest.fixture(scope="module")
def pages(_finished_once, several, evil, large, tmp_path_factory):
    """A page of one run, one of several, one with hostile names, and one with a lot on it."""
    out = tmp_path_factory.mktemp("pages")
    folders = {"one": [_finished_once], "several": sorted(several.iterdir())}
    folders |= {"evil": [evil], "large": [large]}
    return {
        name: write_page([read(RunFolder(path)) for path in paths], out / f"{name}.html")
        for name, paths in folders.items()
    }


@pytest.mark.parametrize(("width", "dark"), SCREENS)
@pytest.mark.parametrize("name", ["one", "several", "evil", "large"])
def test_the_page_is_quiet_whole_and_fits(page, pages, name, width, dark):
    page.open(pages[name], width, dark)
    page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.complaints() == []
    assert page.requests() == [pages[name].resolve().as_uri()]
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value(STICKING_OUT) == []
    assert page.value(TEXT_OUTSIDE) == []
    assert page.value(TEXT_OVERLAPS) == []
    assert page.value(SMALLEST) >= 9


def test_every_figure_is_there_and_has_a_size(page, pages):
    page.open(pages["one"], 1280)
    found = page.value(
        "[...document.querySelectorAll('figure')].map(f => [f.dataset.figure,"
        " f.querySelector('svg').getBoundingClientRect().height])"
    )
    assert [name for name, _ in found] == [
        *("accuracy", "loss", "confusion", "class_accuracy"),
        *("accuracy_by_bytes", "accuracy_by_time", "accuracy_by_flops", "cost"),
        *("partition", "device_spread", "pool", "pool_layers"),
        *("density", "adjustments", "layers", "adjusted_layers"),
    ]
    assert all(height > 100 for _, height in found)


def test_cards_have_one_size(page, pages):
    for width, across in ((1280, 4), (390, 2)):
        page.open(pages["one"], width)
        cards = page.value(
            "[...document.querySelectorAll('.facts > div')].map(card => {"
            " const box = card.getBoundingClientRect(); return [box.y, box.width, box.height]; })"
        )
        assert len(cards) == 8
        assert len({round(y) for y, *_ in cards}) == 8 / across
        assert len({(round(w), round(h)) for _, w, h in cards}) == 1


TOLD = """
[...document.querySelectorAll(".tell")].filter(t => getComputedStyle(t).visibility == "visible")
  .map(t => [...t.querySelectorAll("text")].map(line => line.textContent))
"""
PLACE = """
(() => {
  const figure = document.querySelector('figure[data-figure="%s"]');
  figure.scrollIntoView({block: "center"});
  const box = figure.querySelectorAll(".hit")[%d].getBoundingClientRect();
  return {x: box.x + box.width / 2, y: box.y + box.height / 2};
})()
"""


def test_what_is_pointed_at_tells_its_value_within_its_figure(page, pages):
    page.open(pages["one"], 1280)
    for name in ("accuracy", "confusion", "class_accuracy", "accuracy_by_bytes", "device_spread"):
        page.call("Input.dispatchMouseEvent", type="mouseMoved", **page.value(PLACE % (name, 0)))
        assert len(page.value(TOLD)) == 1, name
    outside = page.value("""
      [...document.querySelectorAll(".tell rect")].filter(rect => {
        const own = rect.getBoundingClientRect();
        const whole = rect.ownerSVGElement.getBoundingClientRect();
        return own.left < whole.left - 1 || own.right > whole.right + 1
          || own.top < whole.top - 1 || own.bottom > whole.bottom + 1;
      }).map(rect => rect.nextSibling.textContent)""")
    assert outside == []
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert page.value(TOLD) == []


def test_what_is_tapped_tells_its_value(page, pages):
    page.open(pages["one"], 390)
    page.call("Emulation.setTouchEmulationEnabled", enabled=True)
    place = page.value(PLACE % ("accuracy", 1))
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[place])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    told = page.value(f"new Promise(done => setTimeout(() => done({TOLD}), 200))", wait=True)
    page.call("Emulation.setTouchEmulationEnabled", enabled=False)
    assert [lines[0] for lines in told] == ["round 2"]


def test_on_paper_the_page_is_light(page, pages):
    page.open(pages["one"], 1280, dark=True)
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", media="print", features=features)
    colors = page.value(
        "[getComputedStyle(document.querySelector('figure')).backgroundColor,"
        " getComputedStyle(document.querySelector('svg text.f-ink')).fill]"
    )
    page.call("Emulation.setEmulatedMedia", media="", features=[])
    assert brightness(colors[0]) > 200 > 60 > brightness(colors[1])


def test_dark_mode_turns_page_and_figures(page, pages):
    def colours(dark):
        page.open(pages["one"], 1280, dark)
        return page.value(
            "['body', 'figure', 'svg text.f-ink'].map(s => {"
            " const style = getComputedStyle(document.querySelector(s));"
            " return s.includes('text') ? style.fill : style.backgroundColor; })"
        )

    light, dark = ([brightness(text) for text in colours(d)] for d in (False, True))
    assert light[0] > 200 > 60 > dark[0]
    assert light[1] > 200 > 60 > dark[1]
    assert dark[2] > 200 > 60 > light[2]


def brightness(colour):
    """The mean of rgb(r, g, b)."""
    return sum(int(part) for part in colour[4:-1].split(",")) / 3


def test_a_hostile_name_starts_no_script(page, pages):
    page.open(pages["evil"], 1280)
    assert page.of("Page.javascriptDialogOpening") == []
    assert page.value("document.scripts.length + document.images.length") == 0


def test_a_browser_that_is_not_quiet_would_be_noticed(page, tmp_path):
    loud = tmp_path / "loud.html"
    loud.write_text("<script>console.error('x')</script><img src='http://localhost:9/x.png'>")
    page.open(loud, 1280)
    assert page.complaints()
    assert "http://localhost:9/x.png" in page.requests()
