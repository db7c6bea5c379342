"""`fedtiny compare` as a user meets it."""

import io
import shutil
import time
from pathlib import Path

import pytest
from rich.console import Console

from fedtiny.experiments.runner import CellReporter, Clock

from ..runs.tiny import FLAGS, assert_one_sentence, locked_elsewhere

BASE = [*FLAGS, "--rounds", "2"]
AT = BASE.index("--density")
ANY_DENSITY = [*BASE[:AT], *BASE[AT + 2 :]]


def test_it_runs_prints_and_writes(compare):
    flags = [*BASE, "--methods", "fedavg", "fl_pqsu", "--density", "0.3", "--seeds", "0"]
    code, out, err = compare(*flags, "--out", "there")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "2 cells: 2 to run, in there"
    assert lines[1] == "1/2 fedavg-d1-s0: starts"
    assert lines[2].startswith("1/2 fedavg-d1-s0: accuracy 0.")
    assert lines[4].startswith("2/2 fl_pqsu-d0.3-s0: accuracy 0.")
    assert "at density 0.3" in lines[4]
    assert lines[-1] == "written: there/table.csv, there/table.md, there/table.tex"
    assert all(Path(path).exists() for path in lines[-1].removeprefix("written: ").split(", "))


def test_a_second_call_prints_the_same_table_without_running(compare, compared, tmp_path, counted):
    out = shutil.copytree(compared, tmp_path / "out")
    flags = [*BASE, "--methods", "fedavg", "fl_pqsu", "--density", "0.3", "--seeds", "0", "1"]
    first, second = (compare(*flags, "--out", out) for _ in range(2))
    assert first == second
    assert first[0] == 0
    assert counted == []
    assert "±" in first[1]


def test_a_grid_from_a_file(compare, compared, tmp_path, counted):
    out = shutil.copytree(compared, tmp_path / "out")
    Path("grid.toml").write_text('methods = ["fl_pqsu"]\ndensity = [0.3]\nseeds = [0, 1]\n')
    code, said, _ = compare("grid.toml", *ANY_DENSITY, "--out", out)
    assert code == 0, said
    assert counted == []
    assert said.count("fl_pqsu") == 1


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("--methods fedavg snup --density 0.3", ["no method 'snup'", "did you mean 'snip'?"]),
        ("--methods fedavg snip --density 0.3 0.001", ["method 'snip'", "density 0.001", "0.0056"]),
        ("--methods fedavg --density 0.3 --data.name nonsense", ["'nonsense'"]),
        ("--methods fedavg --density 0.3 --model resnet81", ["'resnet81'"]),
        ("--methods snip --density 2", ["--density must lie in (0, 1], got 2"]),
        ("--methods snip --seeds -1", ["--seed", "got -1"]),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(compare, counted, flags, parts):
    code, out, err = compare(*BASE, *flags.split(), "--out", "there")
    assert_one_sentence(code, err, *parts)
    assert (len(out.splitlines()) <= 1, counted) == (True, []), "what would start, at most"
    assert list(Path.cwd().iterdir()) == []


def test_a_folder_of_another_comparison_is_refused(compare, compared, tmp_path, counted):
    out = shutil.copytree(compared, tmp_path / "out")
    flags = ["--methods", "fl_pqsu", "--density", "0.3", "--rounds", "3", "--out", out]
    code, _, err = compare(*FLAGS, *flags)
    assert_one_sentence(code, err, "fl_pqsu-d0.3-s0", "rounds", "--out")
    assert counted == []


def test_a_cell_that_fails_does_not_stop_the_others(compare, compared, tmp_path, counted):
    out = shutil.copytree(compared, tmp_path / "out")
    (out / "fedavg-d1-s0" / "result.json").unlink()
    (out / "fedavg-d1-s0" / "checkpoint.safetensors").write_text("nonsense")
    shutil.rmtree(out / "fl_pqsu-d0.3-s0")
    flags = ["--methods", "fedavg", "fl_pqsu", "--density", "0.3", "--seeds", "0", "--out", out]
    code, said, err = compare(*BASE, *flags)
    assert (code, err) == (1, "")
    assert counted == [("resume", "fedavg-d1-s0"), ("run", "fl_pqsu-d0.3-s0")]
    folder = out / "fedavg-d1-s0"
    assert f"damaged; delete the folder {folder}, and give the command again" in said
    assert f"| 1 | fedavg | paper |{' - |' * 8}\n" in (out / "table.md").read_text()


def test_a_cell_is_left_to_the_process_that_works_on_it(compare, compared, tmp_path):
    out = shutil.copytree(compared, tmp_path / "out")
    (out / "fl_pqsu-d0.3-s0" / "result.json").unlink()
    flags = ["--methods", "fl_pqsu", "--density", "0.3", "--seeds", "0", "1", "--out", out]
    with locked_elsewhere(out / "fl_pqsu-d0.3-s0"):
        code, said, _ = compare(*BASE, *flags)
    assert code == 0
    assert "left to another process, which was working on it: fl_pqsu-d0.3-s0\n" in said
    assert "±" not in said, "one seed of two is finished"


def test_a_folder_that_cannot_be_made(compare):
    Path("file").write_text("")
    code, _, err = compare(*BASE, "--methods", "fl_pqsu", "--density", "0.3", "--out", "file/x")
    assert_one_sentence(code, err, "cannot make the folder file/x")


@pytest.mark.parametrize("flag", ["--seeds", "--methods", "--density"])
def test_an_empty_list_is_refused(compare, flag):
    code, _, err = compare(flag, *ANY_DENSITY, "--out", "there")
    assert code != 0
    assert flag in err


def test_settings_that_no_run_reads_are_named_once(compare):
    flags = [*BASE, "--methods", "fl_pqsu", "--density", "0.3", "--seeds", "0", "1"]
    vain = ["--device-backend", "torch", "--device.storage", "float16"]
    _, said, _ = compare(*flags, *vain, "--rounds", "1", "--out", "there")
    first, second, *_ = said.splitlines()
    assert first == "2 cells: 2 to run, in there"
    assert second == "without effect: --device.storage (the devices are not native)"
    assert said.count("without effect") == 1


def test_a_method_on_other_terms_is_named_once(compare):
    flags = [*BASE, "--methods", "fl_pqsu", "ssfl", "--density", "0.3", "--seeds", "0", "1"]
    code, said, _ = compare(*flags, "--rounds", "1", "--out", "there")
    assert code == 0
    told = "on other terms: ssfl has one threshold for all layers (not --pruning.budgets uniform)"
    assert said.splitlines()[1] == told
    assert "without effect" not in said
    text = Path("there/table.md").read_text()
    assert "| fl_pqsu | paper | uniform |" in text
    assert "| ssfl | paper | global |" in text


def test_a_memory_budget_is_compared_at_its_own_density_or_refused(compare):
    flags = [*ANY_DENSITY, "--methods", "fl_pqsu", "--memory-budget", "8kB", "--out", "there"]
    first, second = (compare(*flags) for _ in range(2))
    assert first[0] == second[0]
    if first[0] == 0:
        assert "at density 1.0000" in first[1]
        assert "0.05 " not in first[1]
        assert "fl_pqsu-d0.05" not in first[1]


def test_a_run_tells_where_it_is_at_intervals_if_output_is_a_file(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    out = io.StringIO()
    line = CellReporter(Console(file=out, width=80, highlight=False), "1/1 snip", Clock())
    line.rounds = 7
    line.begin()
    for number in range(1, 8):
        now[0] += 12
        line.round_done({"round_number": number, "accuracy": None if number < 4 else 0.5})
    line.finished({"accuracy": 0.5, "density": 0.3, "seconds": 84})
    assert out.getvalue().splitlines() == [
        "1/1 snip: starts",
        "1/1 snip: round 3/7",
        "1/1 snip: round 6/7, accuracy 0.5000",
        "1/1 snip: accuracy 0.5000 at density 0.3000, 84 s",
    ]


def test_a_run_is_one_line_with_its_round_while_it_goes():
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, highlight=False)
    line = CellReporter(console, "1/1 snip-d0.3-s0", Clock())
    line.rounds = 7
    line.begin()
    assert line.status.status == "1/1 snip-d0.3-s0: starts"
    line.round_done({"round_number": 3})
    assert line.status.status == "1/1 snip-d0.3-s0: round 3/7"
    line.close()
    line.finished({"accuracy": 0.5, "density": 0.3, "seconds": 61.2})
    assert out.getvalue().endswith("1/1 snip-d0.3-s0: accuracy 0.5000 at density 0.3000, 61 s\n")
