"""The figures of a comparison, against the runs they come from."""

import json
import shutil
from dataclasses import replace

import pytest

from fedtiny import config as configs
from fedtiny import cost
from fedtiny.compare.grid import Grid
from fedtiny.compare.rows import rows
from fedtiny.errors import RunError
from fedtiny.runs.folder import RunFolder

from .conftest import BASE


def folders(grid, out):
    return {cell: RunFolder(out / cell.name) for cell in grid.cells()}


@pytest.fixture
def edited(grid, compared, tmp_path):
    """The rows of the comparison with accuracies of our own, in the order of the cells."""

    def rows_with(*accuracies):
        out = shutil.copytree(compared, tmp_path / "out")
        for cell, accuracy in zip(grid.cells(), accuracies, strict=True):
            path = out / cell.name / "result.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"accuracy": accuracy}))
        return rows(folders(grid, out))

    return rows_with


def test_mean_and_spread_by_hand(edited):
    """The spread is the standard deviation of a sample: divided by n - 1."""
    dense, sparse = edited(0.5, 0.9, 0.25, 0.75)
    assert (dense.method, dense.density, dense.seeds) == ("fedavg", 1, 2)
    assert (sparse.method, sparse.density, sparse.seeds) == ("fl_pqsu", 0.3, 2)
    assert dense.accuracy == pytest.approx(0.7)
    assert dense.spread == pytest.approx((2 * 0.2**2) ** 0.5)
    assert (sparse.accuracy, sparse.spread) == pytest.approx((0.5, (2 * 0.25**2) ** 0.5))


def test_one_seed_has_no_spread(compared):
    (row,) = rows(folders(Grid(("fl_pqsu",), (0.3,), (1,), BASE), compared))
    result = json.loads((compared / "fl_pqsu-d0.3-s1" / "result.json").read_text())
    assert (row.seeds, row.spread, row.accuracy) == (1, 0, result["accuracy"])


def test_costs_are_those_of_the_cost_model(grid, compared):
    dense, sparse = rows(folders(grid, compared))
    assert dense.flops_ratio == 1
    assert 0 < sparse.flops_ratio < 1
    assert sparse.memory < dense.memory
    told = cost.summary(
        configs.resolve(grid.cells()[-1].config), shape=(1, 8, 8), classes=10, samples=23
    )
    assert sparse.flops_ratio == told["flops_ratio"]
    assert sparse.memory == told["memory_paper"]


def test_bytes_are_what_a_device_moved_in_a_round(grid, compared):
    _, sparse = rows(folders(grid, compared))
    moved = []
    for seed in (0, 1):
        text = (compared / f"fl_pqsu-d0.3-s{seed}" / "metrics.jsonl").read_text()
        records = map(json.loads, text.splitlines())
        moved += [(record["bytes_down"] + record["bytes_up"]) / 3 for record in records]
    assert sparse.bytes_round == pytest.approx(sum(moved) / 4)
    assert sparse.selection_bytes == 0


def test_a_damaged_result_is_named(grid, compared, tmp_path):
    out = shutil.copytree(compared, tmp_path / "out")
    (out / "fedavg-d1-s1" / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"fedavg-d1-s1/result\.json is missing or damaged"):
        rows(folders(grid, out))


@pytest.mark.parametrize("left", [0, 1])
def test_rounds_that_the_metrics_lack_are_told(grid, compared, tmp_path, left):
    out = shutil.copytree(compared, tmp_path / "out")
    path = out / "fedavg-d1-s1" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.unlink()
    if left:
        path.write_text("".join(lines[:left]))
    told = rf"fedavg-d1-s1/metrics\.jsonl is missing or tells {left} of 2 rounds"
    with pytest.raises(RunError, match=told):
        rows(folders(grid, out))


def test_dense_rows_come_first_and_do_not_part_a_density(grid, compared):
    """Whatever the order of the methods: the best is sought within a density."""
    listed = folders(grid, compared)
    dense, sparse = (
        [c for c in listed if (c.config.density == 1) is is_dense] for is_dense in (True, False)
    )
    other = [replace(c, config=replace(c.config, method="snip")) for c in sparse]
    mixed = {c: listed[c] for c in (*sparse, *dense)} | {
        c: listed[first] for c, first in zip(other, sparse, strict=True)
    }
    assert [(row.density, row.method) for row in rows(mixed)] == [
        (1, "fedavg"),
        (0.3, "fl_pqsu"),
        (0.3, "snip"),
    ]
