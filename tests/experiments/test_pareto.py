"""Accuracy over cost: a line a method, and the front of what none as cheap beats."""

from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import pytest

from fedtiny.drawing.canvas import Dot
from fedtiny.errors import ConfigError
from fedtiny.experiments import pareto
from fedtiny.experiments.experiment import load
from fedtiny.experiments.finished import Finished
from fedtiny.experiments.results import Results
from fedtiny.experiments.suite import Suite

from .test_figure import assert_drawn
from .test_table import results_of

ROOT = Path(__file__).parents[2]
ENDS = {
    "fedavg-cifar10-resnet18-d1": (0.9, 1.0, 900.0, 0.0),
    "fedtiny-cifar10-resnet18-d0.01": (0.8, 0.01, 90.0, 30.0),
    "fedtiny-cifar10-resnet18-d0.001": (0.5, 0.005, 9.0, 3.0),
    "synflow-cifar10-resnet18-d0.001": (0.6, 0.004, 9.0, 0.0),
}


def results(suite, ends):
    """Table 1 with these accuracies, shares of FLOPs, bytes of each of ten rounds, of selection."""
    found = results_of(suite, "table1", "mini", {stem: end[0] for stem, end in ends.items()})
    for stem, (_, share, moved, selection) in ends.items():
        costs = {"flops_ratio": share, "bytes_round": moved, "rounds": 10}
        costs["selection_bytes"] = selection
        runs = found.found[stem]
        runs[:] = [replace(run, numbers={**run.numbers, **costs}) for run in runs]
    return found


def front(panel):
    return pareto.front(panel.points, itemgetter(0), itemgetter(1))


def test_a_line_goes_through_the_densities_of_a_method(paper_suite):
    by_flops, by_bytes = pareto.panels(results(paper_suite, ENDS))
    assert by_flops.title == "ResNet18"
    assert {line.name: line.points for line in by_flops.lines} == {
        "FedAvg": ((1.0, 0.9),),
        "SynFlow": ((0.004, 0.6),),
        "FedTiny": ((0.005, 0.5), (0.01, 0.8)),
    }
    assert front(by_flops) == [(0.004, 0.6), (0.01, 0.8), (1.0, 0.9)]
    assert front(by_bytes) == [(90.0, 0.6), (930.0, 0.8), (9000.0, 0.9)]


def test_an_experiment_names_the_lines_and_what_is_on_none_is_left_out():
    suite = Suite.load(ROOT / "experiments" / "budgets")
    (experiment,) = suite.find(["percent"])
    places = suite.places(experiment, suite.scale("mini"))
    ends = {p.stem: {"accuracy": p.at["run"].rank / 100, "flops_ratio": 1.0} for p in places}
    found = {stem: [Finished(f"{stem}-s0", 0, {}, numbers)] for stem, numbers in ends.items()}
    results = Results(experiment, places, found, suite.scale("mini"), suite.paper)
    (panel,) = pareto.panels(results)
    ranks = {place.at["run"].label: place.at["run"].rank / 100 for place in places}
    assert {line.name: [value for _, value in line.points] for line in panel.lines} == {
        name: sorted(ranks[run] for run in runs) for name, runs in experiment.pareto.items()
    }
    assert "FedTiny-Flow, 3x, Adam" not in sum(experiment.pareto.values(), ())


def test_a_line_through_what_is_not_run_is_refused(tmp_path):
    text = (ROOT / "experiments" / "budgets" / "percent.toml").read_text()
    (tmp_path / "percent.toml").write_text(text.replace('["FedTiny, uniform"', '["FedTiny, uni"'))
    with pytest.raises(ConfigError, match=r"'pareto.FedTiny': unknown name 'FedTiny, uni'.*mean"):
        load(tmp_path / "percent.toml")


def test_every_end_is_drawn_within_the_figure(paper_suite, tmp_path):
    found = results(paper_suite, ENDS)
    drawn = pareto.draw(found)
    tips = [shape.tip for shape in drawn.shapes if isinstance(shape, Dot) and shape.tip]
    assert len(tips) == 2 * len(ENDS)
    assert "SynFlow: 0.6000, 0.004" in tips
    for dot in (shape for shape in drawn.shapes if isinstance(shape, Dot)):
        assert 0 <= dot.x <= drawn.width
        assert 0 <= dot.y <= drawn.height
    assert_drawn((pareto.write(found, tmp_path), ""), "pareto")


def test_one_run_has_nothing_to_be_compared_with(paper_suite, tmp_path):
    alone = {"fedavg-cifar10-resnet18-d1": ENDS["fedavg-cifar10-resnet18-d1"]}
    assert pareto.write(results(paper_suite, alone), tmp_path) == []
