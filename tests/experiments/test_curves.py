"""Curves are kept with results, and drawn: a panel for each model and density, a line a method."""

import json
from dataclasses import replace

import pytest

from fedtiny.drawing import palette
from fedtiny.drawing.canvas import Dot, Line, Text
from fedtiny.errors import RunError
from fedtiny.experiments import curves
from fedtiny.experiments.finished import curve_of
from fedtiny.experiments.regimes import DECIDING
from fedtiny.experiments.results import read_file, text_of

from .own import sweep
from .test_figure import assert_drawn
from .test_table import results_of

CURVES = {
    "fedavg-cifar10-resnet18-d1": ((1, 0.5), (2, 0.9)),
    "fedtiny-cifar10-resnet18-d0.01": ((1, 0.4), (2, 0.7)),
    "fedtiny-cifar10-resnet18-d0.001": ((1, 0.3), (2, 0.5)),
    "synflow-cifar10-resnet18-d0.001": ((1, 0.2), (2, 0.6)),
    "fedtiny-cifar10-vgg11-d0.001": ((2, 0.55),),
}


def with_curves(suite, known):
    """Table 1 at mini with these curves, and one cell more that has none."""
    ends = {stem: curve[-1][1] for stem, curve in known.items()}
    found = results_of(suite, "table1", "mini", ends | {"snip-cifar10-resnet18-d0.001": 0.4})
    for stem, curve in known.items():
        found.found[stem] = [replace(run, curve=curve) for run in found.found[stem]]
    return found


def lines(panel):
    return {line.name: line.points for line in panel.lines}


def test_a_mean_is_taken_at_rounds_that_all_runs_have():
    one, other = {5: (5.0, 0.2), 10: (10.0, 0.4)}, {10: (30.0, 0.6), 15: (45.0, 0.9)}
    assert curves.mean_points([one, other]) == ((20.0, 0.5),)
    assert curves.mean_points([one]) == ((5.0, 0.2), (10.0, 0.4))
    assert curves.mean_points([]) == ()


def test_rounds_count_from_one_and_those_without_a_measurement_are_left_out():
    records = [
        {"round_number": 1, "accuracy": None},
        {"round_number": 2, "accuracy": 0.123456},
        {"round_number": 3},
    ]
    assert curve_of(records) == ((2, 0.1235),)


def test_a_panel_is_a_model_and_a_density_and_the_dense_run_is_in_all_of_its_model(paper_suite):
    shown = curves.panels(with_curves(paper_suite, CURVES))
    assert [panel.title for panel in shown] == [
        *("ResNet18, density 0.01", "ResNet18, density 0.001", "VGG11, density 0.001"),
    ]
    assert lines(shown[0]) == {
        "FedAvg": ((1, 0.5), (2, 0.9)),
        "FedTiny": ((1, 0.4), (2, 0.7)),
        "FedAvg, paper": ((2, 0.9048),),
        "FedTiny, paper": ((2, 0.8523),),
    }
    assert list(lines(shown[1]))[:3] == ["FedAvg", "SynFlow", "FedTiny"]
    assert list(lines(shown[2])) == ["FedTiny", "FedTiny, paper"]
    dense, *others = [line for line in shown[1].lines if not line.hollow]
    assert dense.dashed
    assert not any(line.dashed for line in others)


def test_a_lone_dense_run_has_a_panel(paper_suite):
    dense = {"fedavg-cifar10-resnet18-d1": CURVES["fedavg-cifar10-resnet18-d1"]}
    (panel,) = curves.panels(with_curves(paper_suite, dense))
    assert panel.title == "ResNet18, density 1"


def test_lines_have_the_color_of_their_method_and_the_paper_s_values_are_hollow(paper_suite):
    drawn = curves.draw(with_curves(paper_suite, CURVES))
    tips = {dot.tip: dot for dot in drawn.shapes if isinstance(dot, Dot) and dot.tip}
    assert tips["FedTiny, paper: accuracy 0.6311, round 2"].hollow
    assert not tips["SynFlow: accuracy 0.6, round 2"].hollow
    assert tips["SynFlow: accuracy 0.6, round 2"].color == palette.series("SynFlow", 0)
    assert (
        tips["SynFlow: accuracy 0.6, round 2"].y
        < tips["SynFlow, paper: accuracy 0.2862, round 2"].y
    )
    ours = [line for line in drawn.shapes if isinstance(line, Line) and line.width == 2.2]
    assert len(ours) == 6, "FedAvg twice"
    legend = [shape.text for shape in drawn.shapes if isinstance(shape, Text)][2:6]
    assert legend == ["FedAvg", "FedTiny", "SynFlow", "paper, at its end"]


def test_bytes_of_a_device_are_those_of_selection_and_of_its_rounds(paper_suite):
    found = with_curves(paper_suite, CURVES)
    moved = {"bytes_round": 100.0, "selection_bytes": 30.0}
    for runs in found.found.values():
        runs[:] = [replace(run, numbers={**run.numbers, **moved}) for run in runs]
    shown = curves.panels(found, curves.BY_BYTES)
    assert lines(shown[1])["SynFlow"] == ((130.0, 0.2), (230.0, 0.6))
    assert lines(shown[1])["SynFlow, paper"] == ((230.0, 0.2862),)


def test_everything_lies_within_the_figure(paper_suite):
    drawn = curves.draw(with_curves(paper_suite, CURVES))
    for dot in (shape for shape in drawn.shapes if isinstance(shape, Dot)):
        assert 0 <= dot.x <= drawn.width
        assert 0 <= dot.y <= drawn.height


def test_without_a_curve_there_is_no_figure(paper_suite, tmp_path):
    assert curves.write(with_curves(paper_suite, {}), tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def written(suite, made):
    order = sweep(suite, made)
    paths, lacking = order.write(order.results(order.experiments[0]), "fedtiny reproduce first")
    assert lacking == ""
    return order, {path.name: path for path in paths}


def test_curves_of_real_runs_are_kept_and_drawn(written):
    order, paths = written
    assert_drawn(([paths["curves.svg"], paths["curves.png"]], ""), "curves")
    text = paths["results.json"].read_text()
    cells = json.loads(text)["cells"]
    for cell in cells:
        told = (order.cells_folder / cell["name"] / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in told]
        assert cell["curve"] == [[n + 1, round(r["accuracy"], 4)] for n, r in enumerate(records)]
    curve = json.dumps(cells[0]["curve"], separators=(",", ":"))
    assert f'"curve": {curve}\n' in text, "in one line"
    assert json.loads(text_of(json.loads(text))) == json.loads(text)


def test_the_same_figure_comes_from_the_file_alone(written, tmp_path):
    order, paths = written
    files = (paths["results.json"],)
    alone = replace(order, out=tmp_path / "nothing", result_files=files, _places={})
    (found,) = [alone.results(experiment) for experiment in alone.experiments]
    assert curves.draw(found) == curves.draw(order.results(order.experiments[0]))


def file_with(path, **more):
    """A result file of one cell, with this beside what every cell has."""
    settings = dict.fromkeys(DECIDING, 0)
    cell = {"name": "a-s0", "seed": 0, "settings": settings, "numbers": {}, "machines": [], **more}
    document = {"format": 1, "scale": "mini", "regime": "fair", "machines": [], "cells": [cell]}
    path.write_text(json.dumps(document))
    return path


def test_a_file_without_curves_is_read(tmp_path):
    (run,) = read_file(file_with(tmp_path / "old.json"))["a"]
    assert run.curve == ()
    (run,) = read_file(file_with(tmp_path / "new.json", curve=[[5, 0], [9, 0.5]]))["a"]
    assert run.curve == ((5, 0.0), (9, 0.5))


@pytest.mark.parametrize(
    "curve",
    [
        {"1": 0.5},
        "curve",
        None,
        [0.5],
        [[1]],
        [[1, 0.5, 3]],
        [["1", 0.5]],
        [[1.5, 0.5]],
        [[0, 0.5]],
        [[2, 0.5], [1, 0.6]],
        [[1, 0.5], [1, 0.6]],
        [[1, "0.5"]],
        [[1, None]],
        [[1, 2.0]],
        [[1, float("nan")]],
    ],
)
def test_what_is_no_curve_is_refused(tmp_path, curve):
    path = file_with(tmp_path / "results.json", curve=curve)
    with pytest.raises(RunError, match="is damaged: cell 0 is not as fedtiny writes one"):
        read_file(path)
