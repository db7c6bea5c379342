"""What each command says, and what it does not need for that."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from fedtiny import __version__, extras
from fedtiny.cli.main import COMMANDS
from fedtiny.config import Config, load, resolve
from fedtiny.federation.server import Server

from ..runs.tiny import FILES_OF_COMMAND, FLAGS, TINY, differences, locked_elsewhere


def test_a_run_from_start_to_end(fedtiny, finished, tmp_path):
    said = fedtiny("run", *FLAGS, "--out", tmp_path / "run")
    assert (said.code, said.err) == (0, "")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(re.findall(r"^round \d/3  accuracy \d\.\d{4}", said.out, re.MULTILINE)) == 3
    assert f"done: accuracy {result['accuracy']:.4f} at density {result['density']:.4f}" in said.out
    assert "chosen candidate" in said.out
    assert f"run folder: {tmp_path / 'run'}\n" in said.out
    assert differences(finished, tmp_path / "run") == [], "flags and Python mean the same"


def test_a_tracked_run_says_how_to_look_at_it(fedtiny, tmp_path):
    pytest.importorskip("tensorboard")
    path = tmp_path / "my run"
    said = fedtiny("run", *FLAGS, "--rounds", "1", "--out", path, "--track", "tensorboard")
    assert said.out.endswith(f"tensorboard: tensorboard --logdir '{path}'\n")
    assert list(path.rglob("events.out.tfevents.*"))


def test_without_out_a_run_gets_a_name_of_its_own(fedtiny, tmp_path):
    flags = [*FLAGS, "--rounds", "1", "--seed", "4"]
    assert [fedtiny("run", *flags).code for _ in range(2)] == [0, 0]
    runs = sorted(path.name for path in (tmp_path / "here" / "runs").iterdir())
    assert runs == ["fedtiny-digits-small-d0.3-s4", "fedtiny-digits-small-d0.3-s4-2"]


def test_flags_win_over_the_file_and_the_file_over_the_preset(fedtiny, tmp_path):
    (tmp_path / "my.toml").write_text(
        "rounds = 2\ndensity = 0.5\nmodel = 'small'\nwidth = 2\nworkers = 1\n"
        "[data]\nlimit_train = 120\nlimit_test = 40\n[fleet]\ndevices = 2\nalpha = 3.0\n"
    )
    flags = ["--density", "0.4", "--fleet.devices", "3", "--rounds", "1"]
    assert fedtiny("run", tmp_path / "my.toml", *flags, "--out", tmp_path / "run").code == 0
    config = load(tmp_path / "run" / "config.toml")
    assert (config.density, config.fleet.devices, config.rounds) == (0.4, 3, 1)
    assert (config.fleet.alpha, config.width, config.model) == (3.0, 2, "small")
    assert config.selection.pool_size == resolve(Config()).selection.pool_size


def test_the_config_of_a_run_repeats_it(fedtiny, finished, tmp_path):
    assert fedtiny("run", finished / "config.toml", "--out", tmp_path / "again").code == 0
    assert differences(finished, tmp_path / "again") == []


def test_resume_goes_on_to_the_same_end(fedtiny, finished, stopped):
    said = fedtiny("resume", stopped)
    assert (said.code, said.err) == (0, "")
    assert "resumed after round 2 of 3" in said.out
    assert differences(finished, stopped) == []


def interrupt_training(monkeypatch, call):
    """Ctrl-C while devices train."""
    ask, calls = Server.ask, []

    def ask_or_stop(server, action, *arguments, **named):
        calls.append(action)
        if calls.count("train") == call:
            raise KeyboardInterrupt
        return ask(server, action, *arguments, **named)

    monkeypatch.setattr(Server, "ask", ask_or_stop)


@pytest.mark.parametrize("call", [1, 2])
def test_ctrl_c_in_a_round_tells_how_to_go_on(fedtiny, finished, tmp_path, monkeypatch, call):
    with monkeypatch.context() as patch:
        interrupt_training(patch, call)
        said = fedtiny("run", *FLAGS, "--out", tmp_path / "run")
    assert (said.code, said.err) == (130, "")
    assert said.out.endswith(f"stopped; continue with: fedtiny resume {tmp_path / 'run'}\n")
    assert fedtiny("resume", tmp_path / "run").code == 0
    assert differences(finished, tmp_path / "run") == []


def test_ctrl_c_in_pretraining_tells_how_to_go_on(fedtiny, finished, tmp_path, monkeypatch):
    def stop(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedtiny.runs.assembly.Assembly.pretrain", stop)
        said = fedtiny("run", *FLAGS, "--out", tmp_path / "run")
    assert (said.code, said.err) == (130, "")
    assert f"fedtiny resume {tmp_path / 'run'}" in said.out
    assert fedtiny("resume", tmp_path / "run").code == 0
    assert differences(finished, tmp_path / "run") == []


def test_in_a_terminal_there_is_a_bar(fedtiny, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = fedtiny("run", *FLAGS, "--rounds", "1", "--out", tmp_path / "run")
    assert (said.code, said.err) == (0, "")
    assert "\x1b[" in said.out
    assert "left" in said.out
    assert "done: accuracy" in said.out


def test_inspect_shows_a_finished_run(fedtiny, finished):
    said = fedtiny("inspect", finished)
    result = json.loads((finished / "result.json").read_text())
    assert (said.code, said.err) == (0, "")
    assert "fedtiny: small (width 2) to density 0.3 on digits, 3 devices" in said.out
    assert f"finished: accuracy {result['accuracy']:.4f}" in said.out
    assert "chosen candidate" in said.out
    for layer in ("4", "8"):
        assert re.search(rf"\b{layer}\b\W+0\.\d{{4}}\W+0\.\d{{4}}", said.out)
    shares = rf"all +{result['density']:.4f} +{result['effective_density']:.4f}"
    assert re.search(shares, said.out)
    assert rounds_in(said.out) == ["1", "2", "3"]


def rounds_in(text):
    """The numbers in the table of rounds."""
    table = text[text.index("Rounds") : text.index("Density by layer")]
    return re.findall(r"^\W*(\d+)\W+0\.\d{4}", table, re.MULTILINE)


def test_inspect_shows_a_stopped_run_and_how_to_go_on(fedtiny, stopped):
    said = fedtiny("inspect", stopped)
    assert (said.code, said.err) == (0, "")
    plain = said.out.replace("\n", "")
    assert "stopped after 2 of 3 rounds" in plain
    assert f"fedtiny resume {stopped}" in plain
    assert rounds_in(said.out) == ["1", "2"]


def test_resume_of_a_finished_run_says_so(fedtiny, finished):
    said = fedtiny("resume", finished, "--no-report")
    first = f"the run in {finished} is already finished; nothing is trained again\n"
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(first)
    assert "round 3/3" not in said.out


@pytest.mark.parametrize("name", ["selection.json", "partition.safetensors"])
def test_a_damaged_file_is_told_with_the_way_out_and_not_with_one_that_fails(
    fedtiny, stopped, name
):
    (stopped / name).write_bytes(b"{")
    resumed, shown = fedtiny("resume", stopped), fedtiny("inspect", stopped)
    trouble = f"{stopped / name} is damaged"
    advice = f"put back a copy of it, or run its config again with: fedtiny run {stopped}"
    assert (resumed.code, resumed.out) == (1, f"continuing the run in {stopped}\n")
    assert resumed.err == f"fedtiny: error: {trouble}; {advice}/config.toml\n"
    assert (shown.code, shown.err) == (1, f"fedtiny: error: {trouble}\n")
    assert f"stopped after 2 of 3 rounds: {trouble}; {advice}/config.toml\n" in shown.out
    assert "continue with" not in shown.out
    assert "Density by layer" in shown.out, "the rest is shown"


def test_inspect_shows_a_run_that_another_process_works_on(fedtiny, stopped):
    with locked_elsewhere(stopped):
        said = fedtiny("inspect", stopped)
    assert (said.code, said.err) == (0, "")
    assert "running: 2 of 3 rounds done" in said.out
    assert "resume" not in said.out


def test_inspect_tells_of_a_model_that_is_missing(fedtiny, finished):
    (finished / "model.safetensors").unlink()
    said = fedtiny("inspect", finished)
    assert (said.code, said.err) == (0, "")
    assert "(missing)" in said.out


def just_started(finished, tmp_path):
    """A run that was killed as soon as its config was written."""
    folder = tmp_path / "just started"
    folder.mkdir()
    shutil.copy(finished / "config.toml", folder)
    return folder


def test_inspect_shows_a_run_that_has_just_started(fedtiny, finished, tmp_path):
    folder = just_started(finished, tmp_path)
    said = fedtiny("inspect", folder)
    assert (said.code, said.err) == (0, "")
    plain = said.out.replace("\n", "")
    assert "stopped after 0 of 3 rounds" in plain
    assert f"fedtiny resume '{folder}'" in plain, "quoted for the shell"


def test_inspect_changes_nothing(fedtiny, stopped):
    before = {file.name: file.read_bytes() for file in stopped.iterdir()}
    fedtiny("inspect", stopped)
    assert {file.name: file.read_bytes() for file in stopped.iterdir()} == before


def test_inspect_leaves_a_torn_line_out(fedtiny, stopped):
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write('{"round_number": 3, "acc')
    said = fedtiny("inspect", stopped)
    assert said.code == 0
    assert rounds_in(said.out) == ["1", "2"]


def test_inspect_names_missing_devices_and_unmeasured_rounds(fedtiny, tmp_path):
    flags = ["--fleet.fail-rate", "0.999", "--selection.kind", "none", "--eval-every", "2"]
    assert fedtiny("run", *FLAGS, *flags, "--out", tmp_path / "run").code == 0
    said = fedtiny("inspect", tmp_path / "run")
    assert said.code == 0
    assert said.out.count("0, 1, 2") == 3
    assert rounds_in(said.out)[-2:] == ["2", "3"]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("methods", ["fedtiny", "fedavg"]),
        ("models", ["resnet18", "vgg11", "vgg11_small", "small"]),
        ("datasets", ["digits", "cifar10", "cifar100", "cinic10", "svhn"]),
        ("operations", ["convolution", "group_norm", "matmul"]),
    ],
)
def test_list_names_what_there_is(fedtiny, kind, names):
    said = fedtiny("list", kind)
    assert said.code == 0
    listed = {line.split()[0]: line.split()[1:] for line in said.out.splitlines() if line[0] != " "}
    assert set(names) <= set(listed)
    assert all(listed[name] for name in names), "each with a description"


def test_list_says_which_models_are_native_and_which_export_to_c(fedtiny):
    rows = [line.split() for line in fedtiny("list", "models").out.splitlines()]
    assert rows[0] == ["model", "native", "C"]
    found = {row[0]: row[1:3] for row in rows}
    assert found["cnn1d"] == ["yes", "yes"]
    assert found["vit_tiny"] == ["no", "yes"]
    assert found["resnet18_ns"] == ["no", "no"]


@pytest.mark.parametrize("flag", ["--help", "-h", "help", None])
def test_help_tells_the_commands(fedtiny, flag):
    said = fedtiny(*([flag] if flag else []))
    assert said.code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command} ", said.out, re.MULTILINE)


def test_the_help_names_every_format():
    from fedtiny.export.formats import Format

    assert COMMANDS["export"].endswith("--format " + "|".join(get_args(Format)))


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help(fedtiny, command):
    said = fedtiny(command, "--help")
    assert said.code == 0
    assert f"usage: fedtiny {command}" in said.out


def test_the_version(fedtiny):
    said = fedtiny("--version").out
    assert said == fedtiny("-V").out
    assert re.fullmatch(rf"fedtiny {re.escape(__version__)} \(code [0-9a-f]{{12}}\)\n", said)


def test_the_digest_of_the_code_tells_other_code_wherever_it_lies(tmp_path):
    package = Path(extras.__file__).parent
    copy = shutil.copytree(
        package, tmp_path / "fedtiny", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )

    def digest():
        script = "from fedtiny.extras import own_code; print(own_code())"
        command = [sys.executable, "-c", script]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert digest() == extras.own_code()
    (copy / "errors.py").write_text((copy / "errors.py").read_text() + "# other\n")
    assert digest() != extras.own_code()


WATCH = """
import contextlib, io, json, sys
import fedtiny
from fedtiny.cli.main import dispatch

loaded = {"import fedtiny": "torch" in sys.modules}
for order in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        assert dispatch(order) == 0, order
    loaded[" ".join(order)] = "torch" in sys.modules
fedtiny.Config(rounds=3)
loaded["fedtiny.Config"] = "torch" in sys.modules
print(json.dumps(loaded))
"""


def test_what_only_looks_does_not_import_torch(finished, stopped, tmp_path):
    started = just_started(finished, tmp_path)
    orders = [
        *(["--help"], ["--version"]),
        *([command, "--help"] for command in COMMANDS),
        *(["inspect", str(folder)] for folder in (finished, stopped, started)),
        *(["list", kind] for kind in ("methods", "models", "datasets", "operations")),
    ]
    process = [sys.executable, "-c", WATCH, json.dumps(orders)]
    ended = subprocess.run(process, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    loaded = json.loads(ended.stdout)
    assert loaded == dict.fromkeys(loaded, False)
    assert len(loaded) == len(orders) + 2


def test_a_reader_that_goes_away_gets_no_traceback(finished):
    """As in `fedtiny inspect DIR | head -1`."""
    order = [sys.executable, "-m", "fedtiny", "inspect", str(finished)]
    process = subprocess.Popen(order, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert "Traceback" not in error


@pytest.mark.slow
def test_a_run_whose_reader_goes_away_says_how_to_go_on(fedtiny, tmp_path):
    """As in `fedtiny run | head`."""
    order = [sys.executable, "-m", "fedtiny", "run", *FLAGS, "--out", str(tmp_path / "run")]
    process = subprocess.Popen(order, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("starting ")
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
    assert error == f"stopped; continue with: fedtiny resume {tmp_path / 'run'}\n"
    assert fedtiny("resume", tmp_path / "run").code == 0


def test_a_run_folder_holds_what_flags_said(fedtiny, tmp_path):
    fedtiny("run", *FLAGS, "--rounds", "1", "--data.no-augment", "--out", tmp_path / "run")
    assert {file.name for file in (tmp_path / "run").iterdir()} - {".lock"} == FILES_OF_COMMAND
    config = load(tmp_path / "run" / "config.toml")
    assert config.data.augment is False
    assert config.fleet == TINY.fleet
