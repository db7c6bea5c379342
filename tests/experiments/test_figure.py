"""Figures are drawn, in two formats, with what is missing left out."""

import re
import sys

import numpy as np
import pytest
from PIL import Image

from fedtiny.drawing import palette
from fedtiny.drawing.canvas import Boxes, Dot, Line, Text, text_width
from fedtiny.experiments import figure
from fedtiny.experiments.suite import Suite

from .own import FIRST, sweep, write_suite
from .test_table import TABLE1, results_of

NAMES = ("table1", "density", "ablation", "pool_size", "schedule", "noniid", "small_data")


def assert_drawn(written, stem="figure"):
    paths, lacking = written
    assert [path.name for path in paths] == [f"{stem}.svg", f"{stem}.png"]
    assert lacking == ""
    with Image.open(paths[1]) as image:
        grey = np.asarray(image.convert("L"))
    assert min(grey.shape) > 300
    assert (grey < 250).mean() > 0.01, "more than one pixel in a hundred is drawn"
    assert "</svg>" in paths[0].read_text()


def shapes(canvas, kind):
    return [shape for shape in canvas.shapes if isinstance(shape, kind)]


def texts(canvas):
    return [words.text for words in shapes(canvas, Text)]


def everything(suite, name, scale):
    """Made-up accuracies for every place but the first, one of them with two seeds."""
    (experiment,) = suite.find([name])
    stems = [place.stem for place in suite.places(experiment, suite.scale(scale))][1:]
    costs = {"selection_bytes_paper": 1e6, "dense_model_bytes": 5e6}
    found = results_of(suite, name, scale, {stem: [0.5, 0.6] for stem in stems})
    for runs in found.found.values():
        for run in runs:
            run.numbers.update(costs)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_can_be_drawn(paper_suite, tmp_path, name):
    assert_drawn(figure.write(everything(paper_suite, name, "smoke"), tmp_path))


@pytest.mark.parametrize("name", ["table1", "noniid", "pool_size"])
def test_with_nothing_finished_there_is_a_figure_all_the_same(paper_suite, tmp_path, name):
    assert_drawn(figure.write(results_of(paper_suite, name, "mini", {}), tmp_path))


def test_ours_and_the_papers_are_both_in_the_legend(paper_suite):
    drawn = figure.draw(results_of(paper_suite, "table1", "mini", TABLE1))
    written = texts(drawn)
    assert written[:2] == [
        "Accuracy and cost of every method",
        "scale mini, 5 of 44 cells finished",
    ]
    assert written[2] == "FedAvg"
    assert written[9:12] == ["FedTiny", "paper", "ResNet18"]
    assert "VGG11" in written
    sizes = [(width, height) for s in shapes(drawn, Boxes) for _, _, width, height in s.boxes]
    keys, bars = sizes[:8], [height for _, height in sizes[8:]]
    assert {width for width, _ in keys} == {12}
    full = round(bars[0] / 0.9)
    heights = sorted(round(height / full, 2) for height in bars)
    assert heights == [0.44, 0.54, 0.6, 0.7, 0.9]
    hollow = [dot for dot in shapes(drawn, Dot) if dot.hollow and dot.tip]
    assert "FedTiny, paper: 0.6311" in [dot.tip for dot in hollow]
    assert len([dot for dot in hollow if dot.x < drawn.width / 2]) == 22


def test_a_line_has_a_gap_where_a_run_is_missing(paper_suite):
    accuracies = {
        "fedtiny-cifar10-resnet18-d0.01-alpha=0.1": 0.4,
        "fedtiny-cifar10-resnet18-d0.01": 0.6,
        "fedtiny-cifar10-resnet18-d0.01-alpha=1": 0.7,
    }
    drawn = figure.draw(results_of(paper_suite, "noniid", "mini", accuracies))
    ours = [line for line in shapes(drawn, Line) if line.width == 2.2]
    assert [len(line.points) for line in ours] == [1, 2]
    tips = [dot.tip for dot in shapes(drawn, Dot) if dot.tip and not dot.hollow]
    assert tips == [
        *("FedTiny: accuracy 0.4, alpha 0.1", "FedTiny: accuracy 0.6, alpha 0.5"),
        "FedTiny: accuracy 0.7, alpha 1",
    ]


def test_a_dense_run_is_a_level_where_densities_are_the_axis(suite):
    accuracies = {"fedavg-digits-small-d1": 0.9, "fedtiny-digits-small-d0.3": 0.6}
    drawn = figure.draw(results_of(suite, "first", "tiny", accuracies))
    levels = [line for line in shapes(drawn, Line) if line.dashed and line.width == 1.5]
    assert [line.color for line in levels] == [palette.series("FedAvg", 0)]
    assert "1" not in texts(drawn), "density 1 is not on the axis"


def test_an_axis_that_starts_at_zero_is_linear(tmp_path):
    folder, text = write_suite(tmp_path), FIRST.replace("[order]\n", "[order]\n#")
    for old, new in (
        ("density = [0.01, 0.005]", '"fleet.fail_rate" = [0.0, 0.1, 0.4]'),
        ('rows = ["density"', 'rows = ["fleet.fail_rate"'),
        ('x = "density"', 'x = "fleet.fail_rate"'),
        ("density = [0.005, 0.01]", ""),
    ):
        text = text.replace(old, new, 1)
    (folder / "first.toml").write_text(text)
    written = texts(figure.draw(results_of(Suite.load(folder), "first", "tiny", {})))
    assert {"0", "0.1", "0.4", "fleet.fail_rate"} <= {*written}


def test_the_pool_figure_marks_the_best_pool_and_the_dense_model(paper_suite):
    drawn = figure.draw(everything(paper_suite, "pool_size", "mini"))
    written, middle = shapes(drawn, Text), drawn.width / 2
    assert [words.x < middle for words in written if words.text == "C*"] == [True] * 3 + [False] * 3
    assert [words.x > middle for words in written if words.text == "dense model"] == [True]
    levels = [s for s in shapes(drawn, Line) if s.dashed and s.width == 1.4 and s.color == "muted"]
    assert [line.points[0][0] > middle for line in levels] == [True]


@pytest.mark.parametrize("name", NAMES)
def test_everything_lies_within_the_figure(paper_suite, name):
    drawn = figure.draw(everything(paper_suite, name, "smoke"))
    for words in shapes(drawn, Text):
        width = 0 if words.turned else text_width(words.text, words.size)
        start = {"start": 0, "middle": width / 2, "end": width}[words.anchor]
        assert words.x - start > -8, words.text
        assert words.x - start + width < drawn.width + 8, words.text
    for dot in shapes(drawn, Dot):
        assert 0 <= dot.x <= drawn.width
        assert 0 <= dot.y <= drawn.height


def test_the_same_outcome_gives_the_same_picture(paper_suite, tmp_path):
    found = results_of(paper_suite, "noniid", "mini", {})
    told = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        told.append(figure.write(found, tmp_path / name)[0][0].read_text())
    assert told[0] == told[1]


def test_a_figure_of_real_runs(suite, made):
    order = sweep(suite, made, ["all"])
    for experiment in order.experiments:
        paths, lacking = order.write(order.results(experiment), "fedtiny reproduce")
        assert_drawn(([path for path in paths if path.stem == "figure"], lacking))


def test_without_matplotlib_there_is_no_png_and_the_extra_is_named(
    paper_suite, monkeypatch, tmp_path
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    paths, lacking = figure.write(results_of(paper_suite, "noniid", "mini", {}), tmp_path)
    assert [path.name for path in paths] == ["figure.svg"]
    assert re.search(r"matplotlib is not installed.*'fedtiny\[plot\]'", lacking)


@pytest.mark.parametrize(("scale", "logarithmic"), [("mini", False), ("smoke", True)])
def test_bars_that_lie_far_apart_are_drawn_on_a_logarithmic_axis(
    paper_suite, tmp_path, scale, logarithmic
):
    order = sweep(paper_suite, tmp_path, ["pool_flops"], scale)
    written = texts(figure.draw(order.results(order.experiments[0])))
    assert ("0" not in written) is logarithmic
