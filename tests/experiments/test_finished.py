"""The figures of a comparison, against the runs they come from."""

import json
import re
import shutil

import pytest

from fedtiny import config as configs
from fedtiny import cost
from fedtiny.errors import RunError
from fedtiny.experiments import table
from fedtiny.experiments.compare import COMPARISON, Grid
from fedtiny.experiments.finished import measure
from fedtiny.experiments.results import Results
from fedtiny.runs import reading
from fedtiny.runs.folder import RunFolder

from ..runs.tiny import lines, tiny, train
from .conftest import BASE


def value(results, place, quantity):
    (found,) = [p for p in results.places if p.stem == place]
    return results.ours(found, quantity)


@pytest.fixture
def edited(grid, compared, tmp_path):
    """The results of the comparison with accuracies of our own, in the order of the cells."""

    def results_with(*accuracies):
        out = shutil.copytree(compared, tmp_path / "out")
        for cell, accuracy in zip(grid.cells(), accuracies, strict=True):
            path = out / cell.name / "result.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"accuracy": accuracy}))
        return grid.results(out)

    return results_with


def test_mean_and_spread_by_hand(edited):
    """The spread is the standard deviation of a sample: divided by n - 1."""
    results = edited(0.5, 0.9, 0.25, 0.75)
    assert [place.stem for place in results.places] == ["fedavg-d1", "fl_pqsu-d0.3"]
    dense, sparse = (value(results, p.stem, "accuracy") for p in results.places)
    assert (dense.seeds, sparse.seeds) == (2, 2)
    assert dense.mean == pytest.approx(0.7)
    assert dense.spread == pytest.approx((2 * 0.2**2) ** 0.5)
    assert (sparse.mean, sparse.spread) == pytest.approx((0.5, (2 * 0.25**2) ** 0.5))


def test_one_seed_has_no_spread(compared):
    results = Grid(("fl_pqsu",), (0.3,), (1,), BASE).results(compared)
    found = value(results, "fl_pqsu-d0.3", "accuracy")
    result = json.loads((compared / "fl_pqsu-d0.3-s1" / "result.json").read_text())
    assert (found.seeds, found.spread, found.mean) == (1, 0, result["accuracy"])


def test_costs_are_those_of_the_cost_model(grid, compared):
    results = grid.results(compared)
    dense, sparse = (
        {q: value(results, stem, q).mean for q in ("flops", "flops_ratio", "memory")}
        for stem in ("fedavg-d1", "fl_pqsu-d0.3")
    )
    assert dense["flops_ratio"] == 1
    assert 0 < sparse["flops_ratio"] < 1
    assert sparse["memory"] < dense["memory"]
    told = cost.summary(
        configs.resolve(grid.cells()[-1].config), shape=(1, 8, 8), classes=10, samples=23
    )
    assert sparse["flops"] == told["flops_round"]
    assert sparse["flops_ratio"] == told["flops_ratio"]
    assert sparse["memory"] == told["memory_paper"]


def test_bytes_are_what_a_device_moved_in_a_round(grid, compared):
    results = grid.results(compared)
    moved = []
    for seed in (0, 1):
        text = (compared / f"fl_pqsu-d0.3-s{seed}" / "metrics.jsonl").read_text()
        records = map(json.loads, text.splitlines())
        moved += [(record["bytes_down"] + record["bytes_up"]) / 3 for record in records]
    found = value(results, "fl_pqsu-d0.3", "bytes_round")
    assert found.mean == pytest.approx(sum(moved) / 4)
    assert value(results, "fl_pqsu-d0.3", "selection_bytes").mean == 0


PLAYED = {"flops": 900.0, "flops_plain": 300.0, "memory_paper": 77}
BY_MODEL = ("flops_round", "flops_ratio", "flops_training", "memory_paper")


@pytest.mark.parametrize("method", ["fl_pqsu", "fedtiny"])
def test_costs_are_those_of_the_rounds_that_were_played(method, tmp_path):
    """Of the costliest round; a run that does not tell them is damaged."""
    path = train(tiny(method=method, rounds=2), tmp_path / "run").path
    folder = RunFolder(path)
    records = lines(path)
    real = measure(reading.config(folder), folder)
    assert real["flops_round"] == max(record["flops"] for record in records)
    assert real["flops_training"] == records[0]["flops_plain"]
    dense = reading.about(folder)["dense"]["flops"]
    assert real["flops_ratio"] == pytest.approx(real["flops_round"] / dense)

    def measured(*changes):
        told = (
            {**record, "seconds": 1, **own} for record, own in zip(records, changes, strict=True)
        )
        folder.metrics.write_text("".join(f"{json.dumps(record)}\n" for record in told))
        return measure(reading.config(folder), folder)

    found = measured(PLAYED, {**PLAYED, "flops": 800.0, "memory_paper": 78})
    assert [found[name] for name in BY_MODEL] == [900, pytest.approx(900 / dense), 300, 77]
    for record in records:
        del record["flops_plain"]
    with pytest.raises(RunError, match=r"metrics\.jsonl is missing or tells"):
        measured({}, PLAYED)


def test_selection_costs_what_the_pool_that_was_drawn_takes(tmp_path):
    folder = RunFolder(train(tiny(method="fedtiny", rounds=1), tmp_path / "run").path)
    before = measure(reading.config(folder), folder)
    told = json.loads(folder.selection.read_text())
    counts = told["selection"]["layer_counts"]
    told["selection"]["layer_counts"] = [counts[0], counts[0]]
    folder.selection.write_text(json.dumps(told))
    one = measure(reading.config(folder), folder)["selection_flops"]
    told["selection"]["layer_counts"] = [counts[1], counts[1]]
    folder.selection.write_text(json.dumps(told))
    other = measure(reading.config(folder), folder)["selection_flops"]
    assert one != other
    assert before["selection_flops"] == pytest.approx((one + other) / 2, abs=1)
    told["selection"]["layers"] = ["another"]
    folder.selection.write_text(json.dumps(told))
    with pytest.raises(RunError, match="selection is that of another network"):
        measure(reading.config(folder), folder)


def test_what_the_server_computed_is_told_by_the_run(tmp_path):
    folder = RunFolder(train(tiny(method="fedtiny_flow", rounds=1), tmp_path / "run").path)
    assert measure(reading.config(folder), folder)["server_passes"] == 201
    about = json.loads(folder.about.read_text())
    folder.about.write_text(json.dumps({**about, "server": {"server_passes": 361}}))
    found = measure(reading.config(folder), folder)
    assert (found["server_passes"], found["pretraining_passes"]) == (361, 150)
    del about["server"]
    folder.about.write_text(json.dumps(about))
    with pytest.raises(RunError, match=r"about\.json is damaged"):
        measure(reading.config(folder), folder)


def test_a_damaged_result_is_named(grid, compared, tmp_path):
    out = shutil.copytree(compared, tmp_path / "out")
    (out / "fedavg-d1-s1" / "result.json").write_text("{")
    told = grid.results(out).damaged["fedavg-d1-s1"]
    assert re.search(r"fedavg-d1-s1/result\.json is damaged.*delete the folder", told)


@pytest.mark.parametrize("left", [0, 1])
def test_rounds_that_the_metrics_lack_are_told(grid, compared, tmp_path, left):
    out = shutil.copytree(compared, tmp_path / "out")
    path = out / "fedavg-d1-s1" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.unlink()
    if left:
        path.write_text("".join(lines[:left]))
    told = rf"fedavg-d1-s1/metrics\.jsonl is missing or tells {left} of 2 rounds"
    assert re.search(told, grid.results(out).damaged["fedavg-d1-s1"])


def test_dense_rows_come_first_and_do_not_part_a_density():
    """Whatever the order of the methods: the best is sought within a density."""
    shown = Grid(("fl_pqsu", "fedavg", "snip"), (0.3, 0.1), (0,), BASE).places()
    made = table.sheet(Results(COMPARISON, shown, {}))
    assert [[(row[0].text, row[1].text) for row in section] for section in made.sections] == [
        [("1", "fedavg")],
        [("0.3", "fl_pqsu"), ("0.3", "snip")],
        [("0.1", "fl_pqsu"), ("0.1", "snip")],
    ]
