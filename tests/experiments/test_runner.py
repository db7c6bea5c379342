"""Running what is missing, and nothing else."""

import re
import shutil
from dataclasses import replace

import pytest

from fedtiny.errors import ConfigError, ModelError, RunError
from fedtiny.experiments import runner
from fedtiny.experiments.compare import Grid
from fedtiny.experiments.runner import Account, Runner, usable

from ..runs.tiny import differences, stop
from .conftest import BASE, based
from .own import QUIET


def execute(cells, out):
    return Runner(out, QUIET).run(cells)


def files(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_every_cell_has_a_finished_run_of_its_name(grid, compared):
    assert sorted(path.name for path in compared.iterdir()) == sorted(c.name for c in grid.cells())
    assert all((compared / cell.name / "result.json").exists() for cell in grid.cells())


def test_finished_cells_are_not_run_again_nor_touched(grid, compared, counted):
    before = files(compared)
    account = execute(grid.cells(), compared)
    assert counted == []
    assert files(compared) == before
    assert account == Account()


def test_only_what_is_new_is_run(grid, compared, counted, tmp_path):
    out = shutil.copytree(compared, tmp_path / "out")
    shutil.rmtree(out / "fl_pqsu-d0.3-s1")
    wider = replace(grid, seeds=(0, 1, 2), methods=("fl_pqsu",))
    execute(wider.cells(), out)
    assert counted == [("run", "fl_pqsu-d0.3-s1"), ("run", "fl_pqsu-d0.3-s2")]
    assert differences(out / "fl_pqsu-d0.3-s1", compared / "fl_pqsu-d0.3-s1") == []


def test_a_cut_cell_is_resumed_to_the_same_end(grid, compared, counted, tmp_path):
    out = shutil.copytree(compared, tmp_path / "out")
    cell = grid.cells()[-1]
    shutil.rmtree(out / cell.name)
    stop(cell.config, out / cell.name, 1)
    execute(grid.cells(), out)
    assert counted == [("resume", cell.name)]
    assert differences(out / cell.name, compared / cell.name) == []


def test_a_cell_that_was_killed_before_it_wrote_its_config_is_run(grid, tmp_path, counted):
    """A kill may leave an empty folder, with its lock."""
    cell = grid.cells()[-1]
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / ".lock").touch()
    execute([cell], tmp_path)
    assert counted == [("run", cell.name)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rounds": 3}, r"\(.*rounds\)"),
        ({"train": {"lr": 0.5}}, r"\(train\.lr\)"),
        ({"width": 3}, r"\(width\)"),
        ({"threads": 2}, r"\(threads\)"),
        ({"simulator": "gpu"}, r"\(simulator\)"),
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_a_folder_with_other_settings_is_refused(compared, counted, tmp_path, change, named, cut):
    out = shutil.copytree(compared, tmp_path / "out")
    if cut:
        (out / "fl_pqsu-d0.3-s0" / "result.json").unlink()
    before = files(out)
    cells = Grid(("fl_pqsu",), (0.3,), (0,), based(**change)).cells()
    told = rf"fl_pqsu-d0\.3-s0 holds a run with other .*{named}.*--out"
    if cut:
        account = execute(cells, out)
        assert re.search(told, account.failed["fl_pqsu-d0.3-s0"])
    else:
        with pytest.raises(RunError, match=told):
            execute(cells, out)
    assert counted == []
    assert files(out) == before


@pytest.mark.parametrize(
    "change",
    [
        {"workers": 2},
        {"data": {"root": "elsewhere"}},
        {"gpu": {"lanes": 3}},
        {"gpu": {"cards": 2}},
        {"threads": None},
        {"simulator": "auto"},
        {"gpu": {"precision": "fp32"}},
    ],
    ids=str,
)
def test_what_changes_no_result_may_change(compared, counted, change):
    changed = based(**change)
    execute(Grid(("fl_pqsu",), (0.3,), (0,), changed).cells(), compared)
    assert counted == []


def test_a_cut_cell_goes_on_with_its_data_elsewhere(grid, compared, tmp_path, monkeypatch):
    cell = grid.cells()[-1]
    stop(cell.config, tmp_path / cell.name, 1)
    given = {}
    monkeypatch.setattr(runner, "resume", lambda path, **named: given.update(named))
    moved = based(data={"root": "elsewhere"}, workers=2)
    execute(Grid(("fl_pqsu",), (0.3,), (1,), moved).cells(), tmp_path)
    assert (given["root"], given["workers"]) == ("elsewhere", 2)


def test_a_result_without_its_config_is_no_cell_of_ours(grid, tmp_path):
    cell = grid.cells()[0]
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / "result.json").write_text("{}")
    account = execute([cell], tmp_path)
    assert re.search(r"there is no config file .*config\.toml", account.failed[cell.name])


def test_each_run_is_announced_by_number_and_name(grid, compared, tmp_path, monkeypatch):
    shutil.copytree(compared / "fedavg-d1-s1", tmp_path / "fedavg-d1-s1")
    said = []
    monkeypatch.setattr(runner, "run", lambda *_, reporter, **__: said.append(reporter.title))
    execute(grid.cells(), tmp_path)
    assert said == ["2/4 fedavg-d1-s0", "3/4 fl_pqsu-d0.3-s0", "4/4 fl_pqsu-d0.3-s1"]


# Before anything runs


@pytest.mark.parametrize("method", ["fl_pqsu", "snip", "synflow", "grasp", "prunefl", "fedtiny"])
def test_a_density_out_of_reach_is_refused_with_the_method_that_cannot(method):
    cells = Grid(("fedavg", method), (0.5, 0.001), (0,), BASE).cells()
    with pytest.raises(ConfigError, match=rf"method '{method}': density 0\.001 leaves 0 weights"):
        usable(cells, Account())


def test_what_can_be_run_passes(grid):
    base = based(pruning={"r_stop": 1}, selection={"pool_size": 3})
    every = Grid(("all",), (0.5,), (0,), base).cells()
    for cells in (grid.cells(), every):
        assert usable(cells, Account()) == cells


def test_a_small_model_out_of_reach_is_refused_before_anything_runs():
    cells = Grid(("small_model",), (0.01,), (0,), replace(BASE, model="resnet18")).cells()
    with pytest.raises(ModelError, match="method 'small_model'"):
        usable(cells, Account())
