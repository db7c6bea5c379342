"""Running what is missing, and nothing else."""

import shutil
from dataclasses import replace

import pytest

from fedtiny.compare import execute
from fedtiny.compare.grid import Grid
from fedtiny.errors import ConfigError, ModelError, RunError
from fedtiny.runs.reporter import Silent

from ..runs.tiny import differences, stop, tiny
from .conftest import BASE


def silently(name):
    return Silent()


def files(folder):
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_every_cell_has_a_finished_run_of_its_name(grid, compared):
    assert sorted(path.name for path in compared.iterdir()) == sorted(c.name for c in grid.cells())
    assert all((compared / cell.name / "result.json").exists() for cell in grid.cells())


def test_finished_cells_are_not_run_again_nor_touched(grid, compared, counted):
    before = files(compared)
    folders = execute.execute(grid.cells(), compared, silently)
    assert counted == []
    assert files(compared) == before
    assert [folder.path.name for folder in folders.values()] == [c.name for c in grid.cells()]


def test_only_what_is_new_is_run(grid, compared, counted, tmp_path):
    out = shutil.copytree(compared, tmp_path / "out")
    shutil.rmtree(out / "fl_pqsu-d0.3-s1")
    wider = replace(grid, seeds=(0, 1, 2), methods=("fl_pqsu",))
    execute.execute(wider.cells(), out, silently)
    assert counted == [("run", "fl_pqsu-d0.3-s1"), ("run", "fl_pqsu-d0.3-s2")]
    assert differences(out / "fl_pqsu-d0.3-s1", compared / "fl_pqsu-d0.3-s1") == []


def test_a_cut_cell_is_resumed_to_the_same_end(grid, compared, counted, tmp_path):
    out = shutil.copytree(compared, tmp_path / "out")
    cell = grid.cells()[-1]
    shutil.rmtree(out / cell.name)
    stop(cell.config, out / cell.name, 1)
    execute.execute(grid.cells(), out, silently)
    assert counted == [("resume", cell.name)]
    assert differences(out / cell.name, compared / cell.name) == []


def test_a_cell_that_was_killed_before_it_wrote_its_config_is_run(grid, tmp_path, counted):
    """A kill may leave an empty folder, with its lock."""
    cell = grid.cells()[-1]
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / ".lock").touch()
    execute.execute([cell], tmp_path, silently)
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
    cells = Grid(("fl_pqsu",), (0.3,), (0,), tiny(**{"rounds": 2} | change)).cells()
    with pytest.raises(
        RunError, match=rf"fl_pqsu-d0\.3-s0 holds a run with other .*{named}.*--out"
    ):
        execute.execute(cells, out, silently)
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
    changed = tiny(rounds=2, **change)
    execute.execute(Grid(("fl_pqsu",), (0.3,), (0,), changed).cells(), compared, silently)
    assert counted == []


def test_a_cut_cell_goes_on_with_its_data_elsewhere(grid, compared, tmp_path, monkeypatch):
    cell = grid.cells()[-1]
    stop(cell.config, tmp_path / cell.name, 1)
    given = {}
    monkeypatch.setattr(execute, "resume", lambda path, **named: given.update(named))
    moved = tiny(rounds=2, data={"root": "elsewhere"}, workers=2)
    execute.execute(Grid(("fl_pqsu",), (0.3,), (1,), moved).cells(), tmp_path, silently)
    assert (given["root"], given["workers"]) == ("elsewhere", 2)


def test_a_result_without_its_config_is_no_cell_of_ours(grid, tmp_path):
    cell = grid.cells()[0]
    (tmp_path / cell.name).mkdir()
    (tmp_path / cell.name / "result.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"there is no config file .*config\.toml"):
        execute.execute([cell], tmp_path, silently)


def test_each_run_is_announced_by_number_and_name(grid, compared, tmp_path, monkeypatch):
    shutil.copytree(compared / "fedavg-d1-s1", tmp_path / "fedavg-d1-s1")
    monkeypatch.setattr(execute, "run", lambda *_, **__: None)
    said = []
    execute.execute(grid.cells(), tmp_path, said.append)
    assert said == ["1/4 fedavg-d1-s0", "3/4 fl_pqsu-d0.3-s0", "4/4 fl_pqsu-d0.3-s1"]


# Before anything runs


@pytest.mark.parametrize("method", ["fl_pqsu", "snip", "synflow", "grasp", "prunefl", "fedtiny"])
def test_a_density_out_of_reach_is_refused_with_the_method_that_cannot(method):
    cells = Grid(("fedavg", method), (0.5, 0.001), (0,), BASE).cells()
    with pytest.raises(ConfigError, match=rf"method '{method}': density 0\.001 leaves 0 weights"):
        execute.check(cells)


def test_what_can_be_run_passes(grid):
    execute.check(grid.cells())
    execute.check(Grid(("all",), (0.5,), (0,), tiny(rounds=2, pruning={"r_stop": 1})).cells())


def test_a_small_model_out_of_reach_is_refused_before_anything_runs():
    cells = Grid(("small_model",), (0.01,), (0,), replace(BASE, model="resnet18")).cells()
    with pytest.raises(ModelError, match="method 'small_model'"):
        execute.check(cells)
