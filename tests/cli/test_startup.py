"""What a user sees at once, before anything heavy is imported."""

import os
import subprocess
import sys

import pytest

from fedtiny.cli.main import COMMANDS, Wrapped, dispatch, overview
from fedtiny.process import Stopped

from ..runs.tiny import FLAGS

NO_TORCH = 'import sys\n\nsys.stdout.write("torch is imported\\n")\nsys.exit(7)\n'


def started(tmp_path, *arguments, **named):
    """How a command ends that ends where torch is imported."""
    (tmp_path / "torch").mkdir(exist_ok=True)
    (tmp_path / "torch" / "__init__.py").write_text(NO_TORCH)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    (tmp_path / "here").mkdir(exist_ok=True)
    order = [sys.executable, "-m", "fedtiny", *map(str, arguments)]
    place = {"cwd": tmp_path / "here", "env": {**os.environ, "PYTHONPATH": path, **named}}
    return subprocess.run(order, capture_output=True, text=True, check=False, **place)


def lines_before_torch(tmp_path, *arguments, **named):
    ended = started(tmp_path, *arguments, **named)
    assert ended.returncode == 7, ended.stderr
    *lines, last = ended.stdout.splitlines()
    assert last == "torch is imported"
    return lines


def test_a_run_says_what_begins_before_torch_is_imported(tmp_path):
    line = "starting fedtiny: small to density 0.3 on digits in runs/fedtiny-digits-small-d0.3-s0"
    assert lines_before_torch(tmp_path, "run", *FLAGS) == [line]
    assert list((tmp_path / "here").iterdir()) == [], "no empty folder stays behind"


def test_a_folder_that_was_there_empty_stays(tmp_path):
    (tmp_path / "here" / "mine").mkdir(parents=True)
    (line,) = lines_before_torch(tmp_path, "run", *FLAGS, "--out", "mine")
    assert line.endswith(" on digits in mine")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["mine"]


def test_a_density_that_has_yet_to_be_found_is_not_told(tmp_path):
    (line,) = lines_before_torch(tmp_path, "run", *FLAGS, "--memory-budget", "3MB")
    assert line == "starting fedtiny: small to fit 3MB on digits"


def test_a_dense_method_says_its_own_density(tmp_path):
    (line,) = lines_before_torch(tmp_path, "run", *FLAGS, "--method", "fedavg")
    assert "small to density 1 on digits in runs/fedavg-digits-small-d1-s0" in line


def test_of_several_ranks_the_first_says_it(tmp_path):
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    assert lines_before_torch(tmp_path, "run", *FLAGS, RANK="1", **ranks) == []


def test_resume_says_what_goes_on_before_torch_is_imported(stopped, tmp_path):
    assert lines_before_torch(tmp_path, "resume", stopped) == [f"continuing the run in {stopped}"]


def test_compare_says_what_begins_before_torch_is_imported(tmp_path):
    flags = ["--methods", "snip", "--density", "0.3", "--seeds", "0", "1", "--out", "there"]
    first, *_ = lines_before_torch(tmp_path, "compare", *flags)
    assert first == "2 cells: 2 to run, in there"


def test_reproduce_says_what_begins_before_torch_is_imported(tmp_path):
    first, *_ = lines_before_torch(tmp_path, "reproduce", "table1")
    assert first.startswith("table1 at scale smoke, ")
    assert first.endswith(" to run, in runs/reproduce/smoke/cells")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_help_fits_the_terminal(width):
    lines = overview(width).splitlines()
    assert max(map(len, lines)) <= width
    assert [name for name in COMMANDS if any(line.startswith(f"  {name} ") for line in lines)] == [
        *COMMANDS
    ]


@pytest.mark.parametrize("command", ["run", "reproduce", "export", "doctor"])
def test_help_of_a_command_fits_the_terminal(fedtiny, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "60")
    said = fedtiny(command, "--help")
    assert said.code == 0
    assert max(map(len, said.out.splitlines())) <= 60


def test_boxes_and_short_lines_stay_as_they_are(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = Wrapped(sys.stdout)
    for text in ("short", "\n", "╭" + "─" * 60, "\n", "a word " * 7 + "end"):
        out.write(text)
    told = f"short\n╭{'─' * 60}\na word a word a word a word a word a\nword a word end"
    assert capsys.readouterr().out == told


@pytest.mark.parametrize("stopped", [KeyboardInterrupt(), Stopped(15)])
def test_a_call_without_arguments_may_be_stopped(monkeypatch, stopped):
    def stop(_):
        raise stopped

    monkeypatch.setattr("fedtiny.cli.main.overview", stop)
    assert dispatch([]) == getattr(stopped, "code", 130)
