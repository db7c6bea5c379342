"""Tables: ours beside the paper's, the best marked, what is missing shown as missing."""

import csv
import io
import shutil
from dataclasses import replace

import pytest

from fedtiny.experiments import table
from fedtiny.experiments.finished import Finished
from fedtiny.experiments.results import Results

from .own import sweep

COSTS = {"flops_ratio": 0.1, "memory_paper": 2_500_000.0}


def results_of(suite, name, scale, accuracies):
    """Results with these accuracies, by place; each may be a list over seeds."""
    (experiment,) = suite.find([name])
    at = suite.scale(scale)
    places = suite.places(experiment, at)
    found = {}
    for stem, values in accuracies.items():
        listed = values if isinstance(values, list) else [values]
        found[stem] = [
            Finished(f"{stem}-s{seed}", seed, {}, {"accuracy": value, **COSTS})
            for seed, value in enumerate(listed)
        ]
    return Results(experiment, places, found, at, suite.paper)


TABLE1 = {
    "fedavg-cifar10-resnet18-d1": 0.9,
    "fedtiny-cifar10-resnet18-d0.001": [0.53, 0.55],
    "fl_pqsu-cifar10-resnet18-d0.001": 0.443,
    "synflow-cifar10-resnet18-d0.001": 0.6,
    "fedtiny-cifar10-resnet18-d0.01": 0.7,
}


@pytest.fixture
def table1(paper_suite):
    return results_of(paper_suite, "table1", "mini", TABLE1)


def row(text, *words):
    (line,) = [line for line in text.splitlines() if all(f"| {word} |" in line for word in words)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_papers_values_stand_beside_ours(table1):
    text = table.page(table1)
    assert row(text, "ResNet18", "FedAvg") == [
        *("ResNet18", "1", "FedAvg", "0.9000", "0.9048", "0.100x", "1x", "2.50", "90.91"),
    ]
    assert row(text, "ResNet18", "0.001", "FedTiny")[3:5] == ["*0.5400 ± 0.014*", "0.6311"]
    assert row(text, "ResNet18", "0.001", "SynFlow")[3:5] == ["0.6000", "0.2862"]
    assert row(text, "ResNet18", "0.01", "FedTiny")[3] == "0.7000"


def test_what_is_missing_is_shown_as_missing(table1):
    text = table.page(table1)
    assert row(text, "VGG11", "0.001", "FedTiny")[3:] == [
        *("-", "0.5944", "-", "0.008x", "-", "4.71"),
    ]
    assert "Cells with - are not run yet" in text
    assert "5 of 44 cells are finished, with 1 to 2 seeds each" in text


def test_a_page_can_hold_the_table_as_it_is(table1):
    lines = table.page(table1).splitlines()
    assert lines[0] == "**Accuracy and cost of every method (Table 1)**"
    body = [line for line in lines if line.startswith("|")]
    assert len(body) == 2 + 44
    assert {line.count("|") for line in body} == {10}
    assert all(line.startswith("- ") for line in lines[lines.index(body[-1]) + 2 :])


def test_rows_are_in_the_papers_order_and_not_as_they_run(table1):
    made = table.sheet(table1)
    assert [len(section) for section in made.sections] == [1, 7, 7, 7] * 2
    first = [row[2].text for row in made.sections[1]]
    assert first == ["FL-PQSU", "SNIP", "SynFlow", "PruneFL", "FedDST", "LotteryFL", "FedTiny"]
    assert made.left == ("model", "method")


def test_across_the_paper_stands_in_brackets(paper_suite):
    accuracies = {
        "fedtiny-cifar10-vgg11-d0.001": 0.6,
        "fedtiny-cifar10-vgg11-d0.001-order=forward": 0.7,
    }
    text = table.page(results_of(paper_suite, "schedule", "mini", accuracies))
    assert row(text, "Block (b) 3/30") == [
        *("Block (b) 3/30", "- (0.7883)", "- (0.7534)", "0.6000 (0.6311)"),
    ]
    assert row(text, "Block 3/30")[3] == "0.7000 (0.5721)"
    assert "| schedule | density 0.01 | density 0.005 | density 0.001 |" in text
    assert "0.6311 is ResNet18's figure" in text


def test_figures_without_numbers_have_those_of_other_tables(paper_suite):
    text = table.page(results_of(paper_suite, "noniid", "mini", {}))
    assert row(text, "FedTiny") == ["FedTiny", "-", "-", "- (0.8523)", "-", "-"]
    assert "The paper's values are from Table 1." in text


def test_stand_ins_are_named(paper_suite):
    text = table.page(results_of(paper_suite, "small_data", "smoke", {}))
    stand_ins = "digits for CIFAR-10, ResNet18 (16 wide) for ResNet18, 0.1 for 0.01."
    assert f"In place of the paper's settings: {stand_ins}" in text
    assert "In place" not in table.page(results_of(paper_suite, "small_data", "mini", {}))


def test_csv_has_every_figure_in_full(table1):
    lines = list(csv.DictReader(io.StringIO(table.csv_text(table.lines(table1)))))
    assert len(lines) == 44
    (found,) = [line for line in lines if line["cell"] == "fedtiny-cifar10-resnet18-d0.001"]
    assert (found["model"], found["density"], found["seeds"]) == ("resnet18", "0.001", "2")
    assert float(found["accuracy"]) == pytest.approx(0.54)
    assert float(found["spread"]) == pytest.approx(0.02 / 2**0.5)
    assert (found["paper_accuracy"], found["source_accuracy"]) == ("0.6311", "Table 1")
    assert lines[-1]["accuracy"] == ""


def test_latex_has_a_rule_between_sections(table1):
    text = table.latex(table.sheet(table1))
    assert text.count(r"\midrule") == 8
    assert r"ResNet18 & 0.001 & FedTiny & \underline{0.5400 $\pm$ 0.014} & 0.6311" in text


def test_costs_need_no_run(paper_suite, tmp_path):
    order = sweep(paper_suite, tmp_path, ["pool_flops"], "mini")
    text = table.page(order.results(order.experiments[0]))
    assert row(text, "0.01", "10")[2:] == ["9.03E10", "9.15E10", "6.77E11", "6.86E11"]
    assert row(text, "0.001", "100")[2:] == ["4.16E11", "3.42E11", "3.12E11", "3.56E11"]
    assert order.count(order.experiments[0]) == (3, 3)
    assert order.cells() == []


def test_a_table_of_real_runs(suite, made):
    order = sweep(suite, made)
    text = table.page(order.results(order.experiments[0]))
    assert "5 of 5 cells are finished, with 1 seed each." in text
    assert row(text, "0.3", "FedTiny")[3] == "0.8523"
    assert row(text, "1", "FedAvg")[4:] == ["1.000x", "1x"]


def test_all_seeds_that_are_finished_count(suite, made):
    order = sweep(suite, made, ["second"])
    (experiment,) = order.experiments
    cells = order.cells_folder
    first = "fedtiny-digits-small-d0.3"
    shutil.copytree(cells / f"{first}-s0", cells / f"{first}-s5")
    path = cells / f"{first}-s5" / "config.toml"
    path.write_text(path.read_text().replace("seed = 0", "seed = 5"))
    found = order.results(experiment)
    assert [run.seed for run in found.found[first]] == [0, 5]
    assert found.ours(next(p for p in found.places if p.stem == first), "accuracy").seeds == 2
    assert replace(order, seeds=(0, 5)).count(experiment) == (4, 3)
