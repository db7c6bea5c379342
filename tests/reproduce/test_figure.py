"""Figures are drawn, in two formats, with what is missing left out."""

import sys

import numpy as np
import pytest
from PIL import Image

from fedtiny.errors import FedTinyError
from fedtiny.reproduce import figure

from .own import job
from .test_table import TABLE1, outcome

NAMES = ("table1", "density", "ablation", "pool_size", "schedule", "noniid", "small_data")


def assert_drawn(paths):
    assert [path.name for path in paths] == ["figure.svg", "figure.png"]
    with Image.open(paths[1]) as image:
        grey = np.asarray(image.convert("L"))
    assert min(grey.shape) > 300
    assert (grey < 250).mean() > 0.01, "more than one pixel in a hundred is drawn"
    assert "</svg>" in paths[0].read_text()


def everything(suite, name, scale):
    """Made-up accuracies for every place but the first, one of them with two seeds."""
    (experiment,) = suite.find([name])
    stems = [place.stem for place in suite.places(experiment, suite.scale(scale))][1:]
    costs = {"selection_bytes_paper": 1e6, "dense_model_bytes": 5e6}
    found = outcome(suite, name, scale, {stem: [0.5, 0.6] for stem in stems})
    for runs in found.found.values():
        for run in runs:
            run.numbers.update(costs)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_figure_can_be_drawn(paper_suite, tmp_path, name):
    assert_drawn(figure.write(everything(paper_suite, name, "smoke"), tmp_path))


@pytest.mark.parametrize("name", ["table1", "noniid", "pool_size"])
def test_with_nothing_finished_there_is_a_figure_all_the_same(paper_suite, tmp_path, name):
    assert_drawn(figure.write(outcome(paper_suite, name, "mini", {}), tmp_path))


def test_ours_and_the_papers_are_both_in_the_legend(paper_suite):
    drawn = figure.draw(outcome(paper_suite, "table1", "mini", TABLE1))
    (legend,) = drawn.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names[0] == "FedAvg"
    assert names[-2:] == ["FedTiny", "paper"]
    assert legend.get_title().get_text() == "scale mini, 5 of 44 cells finished"
    assert [axes.get_title() for axes in drawn.axes] == ["ResNet18", "VGG11"]
    bars = [patch for patch in drawn.axes[0].patches if patch.get_height() > 0]
    assert sorted(round(bar.get_height(), 3) for bar in bars) == [0.443, 0.54, 0.6, 0.7, 0.9]
    printed = [p for dots in drawn.axes[0].collections for p in dots.get_offsets()[:, 1]]
    assert 0.6311 in printed
    assert sum(value > 0 for value in printed) == 22


def test_a_line_has_a_gap_where_a_run_is_missing(paper_suite):
    accuracies = {
        "fedtiny-cifar10-resnet18-d0.01-alpha=0.1": 0.4,
        "fedtiny-cifar10-resnet18-d0.01": 0.6,
    }
    drawn = figure.draw(outcome(paper_suite, "noniid", "mini", accuracies))
    (line,) = [line for line in drawn.axes[0].lines if 0.6 in line.get_ydata()]
    assert list(line.get_xdata()) == [0.1, 0.3, 0.5, 1, 10]
    assert [bool(np.isnan(y)) for y in line.get_ydata()] == [False, True, False, True, True]


def test_the_pool_figure_marks_the_best_pool_and_the_dense_model(paper_suite):
    drawn = figure.draw(everything(paper_suite, "pool_size", "mini"))
    accuracy, communication = drawn.axes
    marks = [text.get_text() for text in accuracy.texts]
    assert marks == ["C*"] * 3
    at = {line.get_xdata()[0] for line in accuracy.lines if line.get_linestyle() == ":"}
    assert sorted(at) == pytest.approx([10, 20, 100])
    assert "dense model" in [text.get_text() for text in communication.texts]
    flat = [line for line in communication.lines if list(line.get_ydata()) == [5.0, 5.0]]
    assert len(flat) == 1


def test_the_same_outcome_gives_the_same_picture(paper_suite, tmp_path):
    found = outcome(paper_suite, "noniid", "mini", {})
    texts = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        texts.append(figure.write(found, tmp_path / name)[0].read_text())
    assert texts[0] == texts[1]


def test_a_figure_of_real_runs(suite, made):
    order = job(suite, made, ["all"])
    for experiment in order.experiments:
        found = order.outcome(experiment)
        order.write(found, "fedtiny reproduce")
        assert_drawn(order.draw(found))


def test_without_matplotlib_the_extra_is_named(paper_suite, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(FedTinyError, match=r"matplotlib is not installed.*'fedtiny\[plot\]'"):
        figure.write(outcome(paper_suite, "noniid", "mini", {}), tmp_path)


@pytest.mark.parametrize(("scale", "axis"), [("mini", "linear"), ("smoke", "log")])
def test_bars_that_lie_far_apart_are_drawn_on_a_logarithmic_axis(
    paper_suite, tmp_path, scale, axis
):
    order = job(paper_suite, tmp_path, ["pool_flops"], scale)
    drawn = figure.draw(order.outcome(order.experiments[0]))
    assert drawn.axes[0].get_yscale() == axis
