"""`fedtiny reproduce` as a user meets it."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from fedtiny.cli import reproduce as cli
from fedtiny.errors import FedTinyError
from fedtiny.experiments import runner

from ..runs.tiny import assert_one_sentence, locked_elsewhere

NO_TIME = "1e-9"


@pytest.fixture
def no_runs(monkeypatch):
    monkeypatch.setattr(runner, "complete", lambda *_: pytest.fail("something ran"))


@pytest.mark.slow
def test_the_list_names_every_table_and_figure(reproduce):
    code, out, _ = reproduce("--list", own=False)
    assert code == 0
    for name, source in (("table1", "Table 1"), ("noniid", "Figure 6")):
        (line,) = [line for line in out.splitlines() if line.strip().startswith(name)]
        assert source in line
    assert out.count("Table ") + out.count("Figure ") == 9
    assert "132 runs in all" in out
    assert "--scale paper: as published" in out


@pytest.mark.slow
def test_the_list_counts_what_is_finished(reproduce, made):
    _, out, _ = reproduce("--list", "--scale", "tiny", "--out", made)
    assert [line.split()[-2:] for line in out.splitlines() if "Table 1" in line] == [["5", "5"]]
    _, out, _ = reproduce("--list", "--scale", "tiny", "--out", made, "--seeds", "0", "1")
    assert [line.split()[-2:] for line in out.splitlines() if "Table 1" in line] == [["10", "5"]]
    assert reproduce("--scale", "tiny", "--out", made)[1].splitlines()[0].startswith("Tables")


def test_a_seed_that_is_given_twice_counts_once(reproduce):
    _, out, _ = reproduce("--list", "--scale", "tiny", "--seeds", "0", "0")
    assert [line.split()[-2:] for line in out.splitlines() if "Table 1" in line] == [["5", "0"]]
    _, out, _ = reproduce(
        "first", "--scale", "tiny", "--seeds", "1", "0", "1", "--minutes", NO_TIME
    )
    assert "10 of 10 cells remain" in out
    assert "--scale tiny --seeds 1 0 --folder" in out


def test_a_cell_that_places_share_counts_once(reproduce, folder, tmp_path):
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    file = own / "second.toml"
    file.write_text(file.read_text().replace('selection.kind = "vanilla"', "rounds = 3"))
    _, out, _ = reproduce("--list", "--scale", "tiny", "--folder", own, own=False)
    assert [line.split()[-2:] for line in out.splitlines() if "Figure 4" in line] == [["1", "0"]]


@pytest.mark.slow
def test_it_runs_what_is_missing_and_writes_everything(reproduce, made):
    shutil.rmtree(made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0")
    code, out, err = reproduce("all", "--scale", "tiny", "--out", made)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("first, second at scale tiny, 6 cells: 1 to run, 5 finished, in ")
    cells = [line for line in lines if line[:1].isdigit()]
    assert cells[-1].startswith("6/6 fl_pqsu-digits-small-d0.3-s0: accuracy 0.")
    assert all(line.startswith("6/6 fl_pqsu-digits-small-d0.3-s0") for line in cells)
    for name in ("first", "second"):
        files = {path.name for path in (made / "tiny" / name).iterdir()}
        assert files == {
            *("table.md", "table.csv", "table.tex", "results.json"),
            *("figure.svg", "figure.png", "curves.svg", "curves.png"),
            *("curves_by_bytes.svg", "curves_by_bytes.png", "pareto.svg", "pareto.png"),
            *("curves_by_flops.svg", "curves_by_flops.png"),
        }
    assert "remain" not in out


def test_a_slice_tells_how_to_go_on(reproduce):
    flags = ["first", "--scale", "tiny", "--out", "there", "--minutes", NO_TIME]
    code, out, _ = reproduce(*flags, "--methods", "fedtiny", "fl_pqsu")
    assert code == 0
    told = [line for line in out.splitlines() if line.startswith("time is over")]
    assert len(told) == 1
    assert "4 of 4 cells remain; go on with: fedtiny reproduce first --scale tiny" in told[0]
    assert "--methods fedtiny fl_pqsu" in told[0]
    assert "--out there" in told[0]
    assert "--minutes 1e-09" in told[0]
    assert Path("there/tiny/first/table.md").exists()


def test_the_command_it_tells_can_be_given_again(folder):
    given = ["first", "--scale", "tiny", "--seeds", "0", "1", "--density", "0.3", "--out", "a b"]
    given += ["--folder", str(folder), "--data.root", "the data", "--keep-models", "--workers", "1"]
    asked = cli.tyro.cli(cli.Arguments, args=given)
    order = cli.parse(asked)
    again = cli.shlex.split(cli.command_line(asked, order, here=True))[2:]
    assert cli.tyro.cli(cli.Arguments, args=again) == asked
    told = "fedtiny reproduce first --scale tiny --seeds 0 1 --density 0.3"
    assert cli.command_line(asked, order) == f"{told} --data.root DATA --folder DIR"


def test_a_gpu_scale_without_a_gpu_and_with_workers_is_told_of_once(reproduce, folder, tmp_path):
    scales = Path(shutil.copytree(folder, tmp_path / "own")) / "scales.toml"
    scales.write_text(scales.read_text().replace('simulator = "reference"', 'simulator = "gpu"'))
    flags = ["first", "--scale", "tiny", "--minutes", NO_TIME, "--folder", scales.parent]
    said = reproduce(*flags, "--workers", "2", own=False)[1]
    assert said.count("there is no GPU here") == 1
    assert said.count("without effect: --workers (the GPU simulator") == 1


def test_tables_do_not_forget_what_results_told(reproduce, made, no_runs):
    """Runs that a results.json tells of may lie on another machine."""
    flags = ["first", "--scale", "tiny", "--out", made, "--table-only"]
    assert "5 of 5 cells are finished" in reproduce(*flags)[1]
    shutil.rmtree(made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0")
    assert "5 of 5 cells are finished" in reproduce(*flags)[1]


def rewritten(path, change):
    document = json.loads(path.read_text())
    for cell in document["cells"]:
        change(cell)
    path.write_text(json.dumps(document))
    return path.read_bytes()


def test_what_results_told_of_other_settings_is_refused_and_not_lost(reproduce, made, no_runs):
    flags = ["--scale", "tiny", "--out", made]
    reproduce("first", *flags, "--table-only")
    results = made / "tiny" / "first" / "results.json"
    shutil.rmtree(made / "tiny" / "cells")
    before = rewritten(results, lambda cell: cell["settings"].update({"pruning.delta_r": 2}))
    trouble = f"{results} holds 'fedtiny-digits-small-d0.25-s0' with other settings "
    way_out = "than the experiment has today; choose another --out, or move the file away"
    for asked in (["first", "--table-only"], ["first"]):
        code, _, err = reproduce(*asked, *flags)
        assert_one_sentence(code, err, f"{trouble}(pruning.delta_r) {way_out}")
    code, out, _ = reproduce("--list", *flags)
    assert (code, f"{trouble}(pruning.delta_r) {way_out}" in out) == (0, True)
    assert results.read_bytes() == before


def test_what_results_told_of_runs_that_an_experiment_no_longer_has_stays(reproduce, made):
    flags = ["first", "--scale", "tiny", "--out", made, "--table-only"]
    reproduce(*flags)
    results = made / "tiny" / "first" / "results.json"
    shutil.rmtree(made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0")
    older = {"fl_pqsu-digits-small-d0.3-s0": "fl_pqsu-digits-small-d0.4-s0"}
    rewritten(results, lambda cell: cell.update(name=older.get(cell["name"], cell["name"])))
    code, out, _ = reproduce(*flags)
    assert (code, "4 of 5 cells are finished" in out) == (0, True)
    told = [cell["name"] for cell in json.loads(results.read_text())["cells"]]
    assert len(told) == 5
    assert told[-1] == "fl_pqsu-digits-small-d0.4-s0"


def test_what_results_told_is_finished_everywhere(reproduce, made, no_runs):
    """The list, the table and what is run mean the same by it, whatever lies in the cells."""
    flags = ["first", "--scale", "tiny", "--out", made]
    cells = made / "tiny" / "cells"
    shutil.rmtree(cells / "fl_pqsu-digits-small-d0.3-s0")
    reproduce(*flags, "--table-only")
    (cells / "fl_pqsu-digits-small-d0.25-s0" / "result.json").unlink()
    shutil.rmtree(cells / "fedavg-digits-small-d1-s0")
    _, out, _ = reproduce("--list", "--scale", "tiny", "--out", made)
    assert [line.split()[-2:] for line in out.splitlines() if "Table 1" in line] == [["5", "4"]]
    code, out, _ = reproduce(*flags, "--density", "0.25")
    assert code == 0
    assert "4 of 5 cells are finished" in out
    assert "remain" not in out


def test_what_one_table_lacks_is_run_though_another_has_it(reproduce, made):
    reproduce("first", "--scale", "tiny", "--out", made, "--table-only")
    shutil.rmtree(made / "tiny" / "cells" / "fedtiny-digits-small-d0.3-s0")
    _, out, _ = reproduce("first", "second", "--scale", "tiny", "--out", made)
    assert [line for line in out.splitlines() if line.startswith("6/6 fedtiny-digits-small-d0.3")]
    assert "2 of 2 cells are finished" in out


def test_tables_alone(reproduce, made, no_runs):
    shutil.rmtree(made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0")
    code, out, _ = reproduce("first", "--scale", "tiny", "--out", made, "--table-only")
    assert code == 0
    assert "4 of 5 cells are finished" in out
    assert "remain" not in out


def test_tables_from_result_files_alone(reproduce, made, no_runs):
    assert reproduce("all", "--scale", "tiny", "--out", made, "--table-only")[0] == 0
    files = [made / "tiny" / name / "results.json" for name in ("first", "second")]
    assert reproduce("all", "--out", "rebuilt", "--results", *files)[0] == 0
    for name in ("first", "second"):
        old, new = (Path(root) / "tiny" / name for root in (made, "rebuilt"))
        for file in ("table.md", "table.csv", "table.tex", "figure.svg"):
            assert (new / file).read_bytes() == (old / file).read_bytes()
        cells = [json.loads((at / "results.json").read_text())["cells"] for at in (old, new)]
        assert cells[0] == cells[1]


def test_results_of_another_scale_are_refused(reproduce, made):
    reproduce("first", "--scale", "tiny", "--out", made, "--table-only")
    file = made / "tiny" / "first" / "results.json"
    code, _, err = reproduce("first", "--results", file, "--scale", "rare")
    assert_one_sentence(code, err, "not of scale rare")


def test_results_of_another_experiment_are_refused(reproduce, made):
    reproduce("first", "--scale", "tiny", "--out", made, "--table-only")
    file = made / "tiny" / "first" / "results.json"
    document = json.loads(file.read_text())
    for cell in document["cells"]:
        cell["name"] = f"other-{cell['name']}"
    file.write_text(json.dumps(document))
    code, _, err = reproduce("first", "--results", file, "--out", "elsewhere")
    assert_one_sentence(code, err, "--results has no run of first at scale tiny")
    assert not Path("elsewhere").exists()


def test_no_path_of_this_machine_is_in_the_results(reproduce, made, tmp_path):
    flags = ["--scale", "tiny", "--out", made, "--seeds", "3", "--methods", "fedavg"]
    code, _, _ = reproduce("first", *flags, "--data.root", tmp_path / "data", "--workers", "1")
    assert code == 0
    text = (made / "tiny" / "first" / "results.json").read_text()
    assert str(tmp_path) not in text
    assert text.count("--seeds 3 --methods fedavg --data.root DATA --folder DIR") == 2
    assert "fedavg-digits-small-d1-s3" in text


def test_a_failing_cell_ends_with_an_error(reproduce, made):
    cell = made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0"
    (cell / "result.json").unlink()
    (cell / "checkpoint.safetensors").write_text("nonsense")
    code, out, _ = reproduce("first", "--scale", "tiny", "--out", made)
    assert code == 1
    assert "failed: fl_pqsu-digits-small-d0.3-s0: " in out
    assert f"checkpoint.safetensors is damaged; delete the folder {cell}, and give" in out
    assert "fedtiny run" not in out
    assert "1 of 5 cells remain" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["config.toml", "partition.safetensors", "machines.json", "metrics.jsonl"]
)
def test_a_finished_cell_that_is_damaged_stops_no_other(reproduce, made, name):
    cell, other = (
        made / "tiny" / "cells" / f"fl_pqsu-digits-small-d{d}-s0" for d in ("0.3", "0.25")
    )
    (cell / name).write_text("nonsense")
    shutil.rmtree(other)
    flags = ["first", "--scale", "tiny", "--out", made]
    code, out, err = reproduce(*flags)
    assert (code, err) == (1, "")
    (told,) = [line for line in out.splitlines() if line.startswith("failed: ")]
    assert told.startswith(f"failed: {cell.name}: ")
    assert name in told
    assert told.endswith(f"; delete the folder {cell}, and give the command again")
    assert "4 of 5 cells are finished" in out
    assert "1 of 5 cells remain; go on with: " in out
    code, out, _ = reproduce(*flags, "--table-only")
    assert (code, "failed: " in out, "remain" in out) == (1, True, False)
    shutil.rmtree(cell)
    code, out, _ = reproduce(*flags)
    assert (code, "5 of 5 cells are finished" in out) == (0, True)


@pytest.mark.slow
def test_a_damaged_result_is_made_again(reproduce, made):
    cell = made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0"
    before = json.loads((cell / "result.json").read_text())
    (cell / "result.json").write_text("nonsense")
    code, out, err = reproduce("first", "--scale", "tiny", "--out", made)
    assert (code, err, "failed: " in out) == (0, "", False)
    again = json.loads((cell / "result.json").read_text())
    assert again["accuracy"] == before["accuracy"]


def test_a_finished_cell_without_metrics_stops_no_other(reproduce, made):
    cell = made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0"
    (cell / "metrics.jsonl").unlink()
    code, out, err = reproduce("all", "--scale", "tiny", "--out", made)
    assert (code, err) == (1, "")
    told = f"{cell / 'metrics.jsonl'} is missing or tells 0 of 3 rounds; delete the folder {cell},"
    assert f"failed: {cell.name}: {told} and give the command again\n" in out
    assert "4 of 5 cells are finished" in out
    assert "2 of 2 cells are finished" in out


def test_a_cell_that_would_fail_again_is_not_to_be_gone_on_with(reproduce, made, monkeypatch):
    cell = made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0"
    shutil.rmtree(cell)

    def fails(*_):
        raise FedTinyError("start anew with another --seed", retryable=False)

    monkeypatch.setattr(runner, "complete", fails)
    code, out, _ = reproduce("first", "--scale", "tiny", "--out", made)
    told = "start anew with another --seed; change the settings that it was given"
    assert (code, f"failed: {cell.name}: {told}" in out) == (1, True)
    assert "go on with" not in out


def test_damaged_results_are_told_before_anything_runs(reproduce, made, no_runs):
    results = made / "tiny" / "first" / "results.json"
    results.parent.mkdir()
    results.write_text("nonsense")
    shutil.rmtree(made / "tiny" / "cells" / "fl_pqsu-digits-small-d0.3-s0")
    way = f"{results} is not a results.json, or a damaged one; choose another --out, or move"
    code, _, err = reproduce("first", "--scale", "tiny", "--out", made)
    assert_one_sentence(code, err, way)
    code, out, _ = reproduce("--list", "--scale", "tiny", "--out", made)
    assert (code, way in out) == (0, True)
    counts = [line.split()[-2:] for line in out.splitlines() if "Table 1" in line]
    assert counts == [["-", "-"]]
    assert "Figure 4" in out


def test_what_is_no_results_file_is_told(reproduce, no_runs):
    Path("README.md").write_text("# Text")
    for path in ("README.md", "."):
        code, _, err = reproduce("first", "--results", path)
        assert_one_sentence(code, err, f"{path} is not a results.json")


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "beginning"])
def test_a_cell_is_left_to_the_process_that_works_on_it(reproduce, made, begun):
    held, free = (
        made / "tiny" / "cells" / f"fl_pqsu-digits-small-d{d}-s0" for d in ("0.25", "0.3")
    )
    (held / "result.json").unlink()
    if not begun:
        (held / "config.toml").unlink()
    shutil.rmtree(free)
    with locked_elsewhere(held):
        code, out, _ = reproduce("first", "--scale", "tiny", "--out", made)
    assert code == 0
    assert f"left to another process, which was working on it: {held.name}\n" in out
    assert "failed" not in out
    assert "4 of 5 cells are finished" in out
    assert "1 of 5 cells remain; go on with: fedtiny reproduce first" in out


def test_a_missing_data_set_is_told(reproduce):
    code, out, _ = reproduce("noniid", "--scale", "paper", own=False)
    assert code == 1, "nothing could be run"
    assert "left out, as the data is not here: cifar10: " in out
    told = "15 of 15 cells remain; go on with: fedtiny reproduce noniid --scale paper"
    assert f"{told} --data.root DIR\n" in out


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("tabel1", ["no experiment 'tabel1'", "did you mean 'table1'?"]),
        ("table1 --scale smok", ["no scale 'smok'", "did you mean 'smoke'?"]),
        ("table1 --minutes 0", ["--minutes must be above 0, got 0"]),
        ("table1 --seeds -1", ["--seeds"]),
        ("table1 --workers 0", ["--workers must be at least 1, got 0"]),
        ("table1 --methods snup", ["--methods: no cell has 'snup'", "did you mean 'snip'?"]),
        ("table1 --density 0.01", ["--density: no cell has '0.01' (known: 0.02, 0.1, 0.05)"]),
        ("table1 --results nowhere.json", ["there is no nowhere.json"]),
        ("table1 --folder nowhere", ["there are no experiments in nowhere"]),
    ],
)
def test_what_cannot_be_done_is_told_in_one_sentence(reproduce, no_runs, flags, parts):
    code, out, err = reproduce(*flags.split(), own=False)
    assert_one_sentence(code, err, *parts)
    assert out == ""
    assert list(Path.cwd().iterdir()) == []


def test_a_folder_that_cannot_be_made(reproduce, no_runs):
    Path("file").write_text("")
    code, _, err = reproduce("pool_flops", "--out", "file", own=False)
    assert_one_sentence(code, err, "cannot make the folder file/smoke/pool_flops")


def test_without_matplotlib_all_but_the_png_is_written(reproduce, made, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    code, out, _ = reproduce("first", "--scale", "tiny", "--out", made, "--table-only")
    assert code == 0
    assert "no figure.png: matplotlib is not installed" in out
    assert "written to" in out
    assert (made / "tiny" / "first" / "table.md").exists()
    assert (made / "tiny" / "first" / "figure.svg").exists()
    assert not (made / "tiny" / "first" / "figure.png").exists()
