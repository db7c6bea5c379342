"""Figures show the numbers of the run."""

import io
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fedtiny.drawing.canvas import FORMS, MARGIN, Boxes, Canvas, Dot, Line, Text
from fedtiny.drawing.files import inline, png, standalone
from fedtiny.drawing.plot import Axis, ticks
from fedtiny.report import facts
from fedtiny.report.facts import costs
from fedtiny.report.figures import figures, partition
from fedtiny.report.run import read
from fedtiny.runs.folder import RunFolder

from ..runs.tiny import lines


@pytest.fixture
def run(finished):
    return read(RunFolder(finished))


@pytest.fixture
def drawn(run):
    return {f.name: f for found in figures(run).values() for f in found}


def texts(figure):
    return [shape.text for shape in figure.canvas.shapes if isinstance(shape, Text)]


def tips(figure):
    return [shape.tip for shape in figure.canvas.shapes if isinstance(shape, Dot) and shape.tip]


def test_the_accuracy_of_every_round_is_a_point(run, drawn):
    accuracies = [record["accuracy"] for record in run.records]
    told = [tip for tip in tips(drawn["accuracy"]) if tip.startswith("test set")]
    assert [float(tip.rpartition(" ")[2]) for tip in told] == pytest.approx(accuracies, abs=1e-3)
    assert f"{accuracies[0]:.4f} after round 1, {accuracies[-1]:.4f} after round 4" in (
        drawn["accuracy"].caption
    )
    assert any(text.startswith("worst device") for text in texts(drawn["accuracy"]))


def test_lines_by_round_fill_their_axis_whatever_the_number_of_rounds(drawn):
    assert len([text for text in texts(drawn["accuracy"]) if re.fullmatch(r"0\.\d+", text)]) > 2


def test_higher_accuracy_lies_higher(run, drawn):
    (line, *_) = [
        s for s in drawn["accuracy"].canvas.shapes if isinstance(s, Line) and len(s.points) == 4
    ]
    heights = [-y for _, y in line.points]
    accuracies = [record["accuracy"] for record in run.records]
    assert [heights.index(h) for h in sorted(heights)] == [
        accuracies.index(a) for a in sorted(accuracies)
    ]


def test_the_partition_tells_every_count(run, drawn):
    counts = [str(count) for count in run.table.flat if count]
    written = texts(drawn["partition"])
    for count in set(counts):
        assert written.count(count) >= counts.count(count)
    assert f"{run.table.sum()} on {len(run.table)} devices" in drawn["partition"].caption


def test_devices_that_tell_nobody_of_their_images_have_no_partition(run):
    """Real ones with data of their own: the table of the run is all zeros."""
    private = replace(run, table=np.zeros_like(run.table))
    assert partition(private) is None
    ((_, _, beside),) = [fact for fact in facts.facts(private) if fact[0] == "Devices"]
    assert "images" not in beside


def test_a_row_of_blanks_is_drawn(run):
    some = run.table.copy()
    some[1] = 0
    assert partition(replace(run, table=some)) is not None


def test_the_pool_shows_every_candidate_and_marks_the_chosen(run, drawn):
    selection = run.selection["selection"]
    told = dict(
        re.fullmatch(r"candidate (\d+): loss (.*)", tip).groups() for tip in tips(drawn["pool"])
    )
    assert {int(k) - 1: float(v) for k, v in told.items()} == pytest.approx(
        dict(enumerate(selection["losses"])), abs=1e-4
    )
    (mark,) = [s for s in drawn["pool"].canvas.shapes if isinstance(s, Dot) and s.hollow]
    lowest = max(s.y for s in drawn["pool"].canvas.shapes if isinstance(s, Dot))
    assert mark.y == lowest, "the chosen candidate has the least loss"
    assert any(f"candidate {selection['chosen'] + 1}," in text for text in texts(drawn["pool"]))


def test_adjustments_add_up_to_what_was_grown_and_dropped(finished, drawn):
    records = lines(finished)
    grown = sum(sum(record["grown"].values()) for record in records)
    dropped = sum(sum(record["dropped"].values()) for record in records)
    assert grown == dropped > 0, "FedTiny grows as much as it drops"
    assert f"{grown:,} weights were grown" in drawn["adjustments"].caption
    assert f"{dropped:,} dropped" in drawn["adjustments"].caption
    for layer in {layer for record in records for layer in record["adjusted"]}:
        swapped = sum(record["adjusted"].get(layer, 0) for record in records)
        assert f"{swapped:,}" in texts(drawn["adjusted_layers"])


def test_every_layer_tells_its_density_at_the_end(run, drawn):
    written = texts(drawn["layers"])
    for layer, density in run.records[-1]["densities"].items():
        assert layer.removesuffix(".weight") in written
        assert f"{density:.4f}" in written


def test_costs_are_those_that_were_recorded(finished, run):
    result, about = (json.loads((finished / f"{n}.json").read_text()) for n in ("result", "about"))
    found = {cost.name: cost for cost in costs(run)}
    records = lines(finished)
    assert found["Size of the model"].ours == result["model_bytes"]
    assert found["Size of the model"].dense == about["dense"]["model_bytes"]
    assert found["FLOPs in a round"].ours == max(record["flops"] for record in records)
    assert found["FLOPs in a round"].dense == about["dense"]["flops"]
    moved = [(r["bytes_down"] + r["bytes_up"]) / len(r["answered"]) for r in records]
    assert found["Bytes in a round"].ours == pytest.approx(sum(moved) / len(moved))
    assert found["Bytes in a round"].ours < found["Bytes in a round"].dense


def corners(shape):
    match shape:
        case Boxes(boxes):
            return [(x + width, y + height) for x, y, width, height in boxes]
        case Line(points):
            return points
    return [(shape.x, shape.y)]


def test_figures_lie_within_their_canvas(drawn):
    for figure in drawn.values():
        places = [place for shape in figure.canvas.shapes for place in corners(shape)]
        assert len(places) > 10
        for x, y in places:
            assert -0.1 <= x <= figure.canvas.width + 0.1, figure.name
            assert -0.1 <= y <= figure.canvas.height + 0.1, figure.name


def test_files_of_figures_are_whole(drawn):
    for figure in drawn.values():
        root = ElementTree.fromstring(standalone(figure.canvas, figure.title))
        assert root.attrib["aria-label"] == figure.title
        assert root.find("{http://www.w3.org/2000/svg}style") is not None
        data = png(figure.canvas)
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        width = int.from_bytes(data[16:20])
        assert width == 2 * (figure.canvas.width + 2 * MARGIN)


def test_a_long_run_stays_small_on_the_page(run):
    """A network of 20 layers and 300 rounds, where every density changes every round."""
    layers = [f"layer{number}.weight" for number in range(20)]
    record = run.records[-1]
    run.records.clear()
    for t in range(300):
        densities = {name: 0.01 + t / 1e4 + n / 1e3 for n, name in enumerate(layers)}
        run.records.append({**record, "round_number": t + 1, "densities": densities})
    found = [f for drawn in figures(run).values() for f in drawn]
    assert {"layers", "accuracy"} <= {f.name for f in found}
    assert sum(len(inline(f.canvas, f.title)) for f in found) < 500_000


def test_text_in_a_figure_is_escaped():
    canvas = Canvas()
    canvas.add(Text(1, 2, "<b>&"), Dot(1, 2, 3, "ink", tip="</title><script>"))
    text = inline(canvas, '"><script>')
    assert "<script>" not in text
    assert "&lt;b&gt;&amp;" in text
    assert ElementTree.fromstring(text).attrib["aria-label"] == '"><script>'


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.95, 1.0), (-5, 12000), (2.5, 2.9), (0, 1e-6)])
def test_ticks_are_few_and_within(low, high):
    found = ticks(low, high)
    assert 3 <= len(found) <= 7
    assert low <= min(found) < max(found) <= high * 1.000001


def test_a_scale_maps_its_ends_and_a_logarithm_its_middle():
    assert Axis(0, 10, start=100, end=0).at(2.5) == 75
    assert Axis(0.001, 0.1, log=True, end=100).at(0.01) == pytest.approx(50)
    assert Axis(3, 3, end=100).at(3) == 50


@pytest.mark.parametrize("form", FORMS)
def test_every_marker_is_drawn_in_both_formats(form):
    canvas = Canvas(40, 40)
    canvas.add(Dot(20, 20, 6, "ink", form=form), Dot(20, 20, 3, "ink", hollow=True, form=form))
    root = ElementTree.fromstring(standalone(canvas, form))
    kind = "circle" if form == "circle" else "polygon"
    assert len(root.findall(f"{{http://www.w3.org/2000/svg}}{kind}")) == 2
    with Image.open(io.BytesIO(png(canvas))) as image:
        pixels = np.asarray(image.convert("L"))
    assert (pixels < 100).any()
