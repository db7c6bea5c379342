"""Figures show the numbers of the run."""

import io
import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from fedtiny.api.result import Result
from fedtiny.drawing import palette
from fedtiny.drawing.canvas import FORMS, MARGIN, Area, Boxes, Canvas, Dot, Line, Text
from fedtiny.drawing.files import inline, png, standalone
from fedtiny.drawing.plot import Axis, ticks
from fedtiny.errors import ConfigError
from fedtiny.report import devices, facts
from fedtiny.report.costs import costs
from fedtiny.report.figures import figures, partition
from fedtiny.report.final import class_accuracy
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
    columns = [area.tip.split("\n") for area in areas(drawn["accuracy"])]
    assert [column[0] for column in columns] == [f"round {number}" for number in (1, 2, 3, 4)]
    names = ["test set", "devices, mean", "worst device"]
    assert all([line.partition(":")[0] for line in column[1:]] == names for column in columns)
    assert [float(column[1].rpartition(" ")[2]) for column in columns] == pytest.approx(
        accuracies, abs=1e-4
    )
    assert f"{accuracies[0]:.4f} after round 1, {accuracies[-1]:.4f} after round 4" in (
        drawn["accuracy"].caption
    )
    assert any(text.startswith("worst device") for text in texts(drawn["accuracy"]))


def areas(figure):
    return [shape for shape in figure.canvas.shapes if isinstance(shape, Area)]


def test_columns_that_tell_values_cover_the_plot_and_do_not_overlap(drawn):
    columns = areas(drawn["loss"])
    ends = [column.x + column.width for column in columns]
    assert ends[:-1] == pytest.approx([column.x for column in columns[1:]])
    (axis,) = {s.points for s in drawn["loss"].canvas.shapes if isinstance(s, Line) and s.width == 1
               and s.color == "muted" and s.points[0][1] == s.points[1][1]}  # fmt: skip
    assert (columns[0].x, ends[-1]) == pytest.approx((axis[0][0], axis[1][0]))


def test_the_final_model_is_told_by_class(finished, run, drawn):
    result = json.loads((finished / "result.json").read_text())
    counts, classes = run.confusion, run.table.shape[1]
    assert counts.shape == (classes, classes)
    assert np.trace(counts) / counts.sum() == pytest.approx(result["accuracy"], abs=1e-9)
    right, samples = np.trace(counts), counts.sum()
    told = f"{right} of {samples} test samples are classified correctly (diagonal)."
    assert drawn["confusion"].caption.startswith(told)
    told = {area.tip for area in areas(drawn["confusion"])}
    assert f"true class 1\npredicted class 2\n{counts[1, 2]} samples" in told
    bars = [area.tip.splitlines()[1] for area in areas(drawn["class_accuracy"])]
    assert bars == [
        f"{counts[k, k]} of {row.sum()} samples" for k, row in enumerate(counts) if row.sum()
    ]


def test_classes_of_one_accuracy_are_not_told_apart(run):
    counts = 5 * np.eye(len(run.confusion), dtype=np.int64)
    even = class_accuracy(replace(run, confusion=counts)).caption
    assert even.endswith(": 1.0000 for every class.")
    counts[1, 0] = 4
    uneven = class_accuracy(replace(run, confusion=counts)).caption
    assert uneven.endswith(": lowest 0.5556 (class 1), highest 1.0000 (class 0).")


def test_devices_are_told_one_by_one(finished, run, drawn):
    by_name = {one.heading: one.values for one in devices.quantities(run)}
    assert by_name["samples"] == dict(enumerate(run.table.sum(axis=1)))
    last = lines(finished)[-1]
    own = {int(device): value for device, value in last["device_accuracies"].items()}
    assert by_name["accuracy"] == own
    assert min(own.values()) == last["device_accuracy_worst"]
    moved = run.result["bytes_down"] + run.result["bytes_up"]
    moved += sum(record["bytes_evaluation"] for record in run.records)
    assert sum(by_name["bytes"].values()) == pytest.approx(moved)
    assert f"device 1, accuracy: {own[1]:.4f}" in tips(drawn["device_spread"])
    headings, rows = devices.rows(run)
    assert headings == ["device", "samples", "classes", "accuracy", "bytes"]
    assert [row[0] for row in rows] == ["0", "1", "2"]


def test_devices_that_missed_rounds_or_were_out_of_bounds_are_counted(run):
    records = [dict(record) for record in run.records]
    records[0] |= {"failed": {"1": "too late"}, "answered": [0, 2], "bounded": {"2": "x"}}
    records[1] |= {"failed": {"1": "too late"}, "answered": [0, 2]}
    found = {one.heading: one.values for one in devices.quantities(replace(run, records=records))}
    assert found["missed"] == {0: 0, 1: 2, 2: 0}
    assert found["out of bounds"] == {0: 0, 1: 0, 2: 1}
    assert found["bytes"][1] < found["bytes"][0]


def test_every_axis_says_what_it_shows(drawn):
    for name, figure in drawn.items():
        if name not in ("cost", "device_spread"):  # whose rows are named one by one
            turned = [s.text for s in figure.canvas.shapes if isinstance(s, Text) and s.turned]
            assert any(text.isalpha() or " " in text for text in turned), name


def test_the_run_has_the_color_of_its_method(run, drawn):
    assert run.color == palette.series("FedTiny", 0)
    for name in ("accuracy", "loss", "density", "cost", "class_accuracy", "device_spread"):
        assert run.color in {getattr(s, "color", "") for s in drawn[name].canvas.shapes}, name


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


def test_devices_that_tell_nobody_of_their_samples_have_no_partition(run):
    """Real ones with data of their own: the table of the run is all zeros."""
    private = replace(run, table=np.zeros_like(run.table))
    assert partition(private) is None
    ((_, _, beside),) = [fact for fact in facts.facts(private) if fact[0] == "Devices"]
    assert "samples" not in beside


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
    assert found["Model size, as sent"].ours == result["model_bytes"]
    assert found["Model size, as sent"].dense == about["dense"]["model_bytes"]
    (finished / "model.packed").write_bytes(bytes(321))
    packed = {cost.name: cost for cost in costs(read(RunFolder(finished)))}
    assert packed["Model size, packed"].ours == 321
    assert "Model size, as sent" not in packed, "one number for the size"
    assert found["FLOPs in a round"].ours == max(record["flops"] for record in records)
    assert found["FLOPs in a round"].dense == about["dense"]["flops"]
    kinds = ("bytes_down", "bytes_up", "bytes_evaluation")
    moved = [sum(r[kind] for kind in kinds) / len(r["answered"]) for r in records]
    assert found["Bytes in a round"].ours == pytest.approx(sum(moved) / len(moved))
    assert found["Bytes in a round"].ours < found["Bytes in a round"].dense


def corners(shape):
    match shape:
        case Boxes(boxes):
            return [(x + width, y + height) for x, y, width, height in boxes]
        case Line(points):
            return points
        case Area():
            return [(shape.x, shape.y), (shape.x + shape.width, shape.y + shape.height)]
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


def test_a_figure_is_saved_by_the_ending_of_its_name(drawn, tmp_path):
    figure = drawn["accuracy"]
    assert repr(figure) == "<Figure 'accuracy': Accuracy by round>"
    assert figure.save(tmp_path / "new" / "a.svg").read_text() == figure._repr_svg_()
    assert figure.save(tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match=r"as \.svg or \.png, not as 'a\.pdf'"):
        figure.save(tmp_path / "a.pdf")


def test_plot_tells_of_every_figure(drawn):
    asked = Result.plot.__doc__.partition("Args:")[2].partition("Returns:")[0]
    assert set(drawn) == set(re.findall(r"`(\w+)`", asked))
