"""Whatever is wrong, one clear sentence says so, and nothing is left behind."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from ..runs.tiny import FLAGS, lines, locked_elsewhere


def assert_one_sentence(said, *parts, code=1):
    """One line that names the culprit and what to do, and nothing besides."""
    assert said.code == code, said
    assert said.err.startswith("fedtiny: error: ")
    assert said.err.endswith("\n")
    assert said.err.count("\n") == 1, "one line"
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ("--data.name cifar-10", ["'cifar-10'", "did you mean 'cifar10'?"]),
        ("--data.name nonsense", ["'nonsense'", "digits, cifar10, cifar100, cinic10, svhn"]),
        ("--data.name cifar10", ["no data/cifar10", "fedtiny data get cifar10", "--data.root"]),
        ("--data.name svhn --data.root /nowhere", ["/nowhere/svhn", "fedtiny data get svhn"]),
        ("--data.name folder --data.root /nowhere", ["no folder /nowhere", "--data.root"]),
        ("--density 0", ["--density must lie in (0, 1], got 0"]),
        ("--density 2", ["--density must lie in (0, 1], got 2"]),
        ("--density nan", ["--density must lie in (0, 1], got nan"]),
        ("--density -0.1", ["--density must lie in (0, 1], got -0.1"]),
        ("--density 1e-9", ["density 1e-09 leaves 0 weights", "choose at least 0.0056"]),
        ("--fleet.alpha 0", ["--fleet.alpha must be above 0, got 0"]),
        ("--fleet.alpha -1", ["--fleet.alpha must be above 0, got -1"]),
        ("--fleet.alpha inf", ["alpha must be a finite number above 0, not inf"]),
        ("--fleet.devices 100", ["100 devices", "--fleet.devices or --fleet.min-samples"]),
        ("--data.limit-train 5", ["public set takes 5 of your 5 training", "lower --data.n-shots"]),
        ("--fleet.min-replies 4", ["--fleet.min-replies is 4", "devices a round asks"]),
        ("--fleet.fraction 0.3 --fleet.min-replies 2", ["--fleet.min-replies is 2"]),
        ("--fleet.partition shards --fleet.shards-per-device 99", ["297 shards", "from 1 to 23"]),
        ("--model resnet81", ["no model 'resnet81'", "vgg11", "did you mean 'resnet18'?"]),
        ("--method fedtinny", ["no method 'fedtinny'", "fedavg", "did you mean 'fedtiny'?"]),
        ("--rounds 0", ["--rounds must be at least 1, got 0"]),
        ("--train.lr -1", ["--train.lr must be above 0, got -1"]),
        ("--train.batch-size 1", ["--train.batch-size must be at least 2, got 1"]),
        ("--seed -1", ["--seed must lie in [0, 2^63), got -1"]),
        ("--threads 0", ["--threads must be at least 1, got 0"]),
        ("--workers 0", ["--workers must be at least 1, got 0"]),
        ("--fleet.devices 0", ["--fleet.devices must be at least 1, got 0"]),
        ("--fleet.fraction nan", ["--fleet.fraction must lie in (0, 1], got nan"]),
        ("--seed 18446744073709551616", ["--seed must lie in [0, 2^63)"]),
        ("--parameters 5", ["the small model has at least 163 parameters, more than the 5"]),
        ("--memory-budget lots", ["'lots' is not a size; write for example 3MB"]),
        ("--memory-budget 1kB", ["fedtiny with small needs at least", "the budget of 1,000"]),
    ],
)
def test_a_bad_setting_leaves_no_folder_behind(fedtiny, flags, parts):
    assert_one_sentence(fedtiny("run", *FLAGS, *flags.split(), "--out", "run"), *parts)
    assert list(Path.cwd().iterdir()) == []
    assert_one_sentence(fedtiny("run", *FLAGS, *flags.split()), *parts)
    assert list(Path.cwd().iterdir()) == [], "no runs/ either"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("densty = 0.1", ["unknown key 'densty'", "did you mean 'density'?"]),
        ("[fleet]\nclients = 3", ["unknown key 'fleet.clients'"]),
        ("[selection]\npool-sise = 3", ["'selection.pool-sise'", "'selection.pool_size'?"]),
        ("rounds = 'many'", ["'rounds' must be int, got 'many'"]),
        ("density = true", ["'density' must be float, got True"]),
        ("fleet = 3", ["'fleet' is a table"]),
        ("density = 2", ["--density must lie in (0, 1]"]),
        ("density = nan", ["--density must lie in (0, 1]"]),
        ("density : 0.1", ["cannot read config file", "line 1"]),
        ("[fleet\ndevices = 3", ["cannot read config file", "line 1"]),
        ("\x00", ["cannot read config file"]),
    ],
)
def test_a_bad_config_file_is_named(fedtiny, text, parts):
    Path("my.toml").write_text(text)
    assert_one_sentence(fedtiny("run", "my.toml", *FLAGS), "my.toml", *parts)
    assert [path.name for path in Path.cwd().iterdir()] == ["my.toml"]


def test_a_config_file_that_cannot_be_read_is_named(fedtiny):
    assert_one_sentence(fedtiny("run", "no.toml"), "there is no config file no.toml")
    assert_one_sentence(fedtiny("run", "."), "cannot read config file .")


def test_a_folder_that_is_not_empty_is_not_touched(fedtiny, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.tex").write_text("my work")
    said = fedtiny("run", *FLAGS, "--out", out)
    assert_one_sentence(said, f"{out} is not empty", "another --out", f"fedtiny resume {out}")
    assert [(file.name, file.read_text()) for file in out.iterdir()] == [("thesis.tex", "my work")]


def test_a_run_is_never_overwritten(fedtiny, finished):
    before = {file.name: file.read_bytes() for file in finished.iterdir()}
    assert_one_sentence(fedtiny("run", *FLAGS, "--out", finished), "is not empty")
    assert {file.name: file.read_bytes() for file in finished.iterdir()} == before


def test_a_folder_cannot_lie_below_a_file(fedtiny, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        said = fedtiny("run", *FLAGS, "--out", out)
        assert_one_sentence(said, f"cannot make the run folder {out}")
    assert (tmp_path / "file").read_text() == "mine"


def refuse(monkeypatch, name, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Path, name, fail)


def test_a_read_only_place_is_named(fedtiny, monkeypatch):
    refuse(monkeypatch, "mkdir", PermissionError(errno.EACCES, "Permission denied"))
    said = fedtiny("run", *FLAGS, "--out", "run")
    assert_one_sentence(said, "cannot make the run folder run: Permission denied")
    assert_one_sentence(fedtiny("run", *FLAGS), "cannot make a run folder in runs: Permission")


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EROFS, "Read-only file system"),
    ],
    ids=["permission denied", "read-only file system"],
)
def test_a_read_only_run_is_named(fedtiny, stopped, monkeypatch, error):
    really_open = Path.open

    def open_to_read(path, mode="r", *arguments, **named):
        if mode[0] in "wa":
            raise error
        return really_open(path, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", open_to_read)
    said = fedtiny("resume", stopped)
    assert_one_sentence(said, f"cannot write to the run folder {stopped}")


@pytest.mark.parametrize("command", ["resume", "inspect"])
def test_a_folder_that_is_no_run_is_named(fedtiny, tmp_path, command):
    for path in (tmp_path, tmp_path / "nowhere"):
        said = fedtiny(command, path)
        assert_one_sentence(said, f"{path} is not a run folder", "config.toml")


def test_a_truncated_checkpoint_says_what_to_do(fedtiny, stopped):
    path = stopped / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    said = fedtiny("resume", stopped)
    assert_one_sentence(said, f"{path} is damaged", f"fedtiny run {stopped / 'config.toml'}")
    assert len(lines(stopped)) == 2, "nothing is thrown away"


def test_a_flipped_bit_of_a_checkpoint_says_what_to_do(fedtiny, stopped):
    path = stopped / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    data[-50] ^= 4
    path.write_bytes(data)
    assert_one_sentence(fedtiny("resume", stopped), f"{path} is damaged", "fedtiny run")


def test_a_checkpoint_of_another_model_is_named(fedtiny, stopped):
    text = (stopped / "config.toml").read_text()
    (stopped / "config.toml").write_text(text.replace("width = 2", "width = 3"))
    assert_one_sentence(fedtiny("resume", stopped), "checkpoint.safetensors", "another model")


@pytest.mark.parametrize("command", ["resume", "inspect"])
def test_a_damaged_line_of_metrics_is_named(fedtiny, stopped, command):
    path = stopped / "metrics.jsonl"
    path.write_text('{"round": 0, "accu\n' + path.read_text())
    assert_one_sentence(fedtiny(command, stopped), f"line 1 of {path} is damaged")


def test_a_run_that_another_process_works_on_is_named(fedtiny, stopped):
    with locked_elsewhere(stopped):
        assert_one_sentence(fedtiny("resume", stopped), f"another process is working on {stopped}")


def test_a_selection_that_too_few_devices_answer_is_told(fedtiny):
    said = fedtiny("run", *FLAGS, "--fleet.fail-rate", "0.999", "--out", "run")
    assert_one_sentence(
        said,
        "only 0 devices answered the selection, fewer than --fleet.min-replies 1; "
        "start anew with a lower --fleet.fail-rate, or with another --seed",
    )


def test_an_unknown_command_gets_a_guess(fedtiny):
    assert_one_sentence(fedtiny("rum"), "no command 'rum'", "did you mean 'run'?", code=2)
    assert_one_sentence(fedtiny("qqq"), "known: run, resume, inspect", code=2)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "--densty", "0.1"], ["--densty", "--density"]),
        (["run", "--fleet.device", "3"], ["--fleet.device", "--fleet.devices"]),
        (["run", "--density", "low"], ["--density", "low"]),
        (["run", "--fleet.partition", "random"], ["random", "dirichlet"]),
        (["list", "modles"], ["modles", "models"]),
        (["list"], ["methods", "models", "datasets"]),
        (["resume"], ["run folder"]),
        (["inspect"], ["run folder"]),
        (["data"], ["get"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_a_command_that_cannot_be_understood_exits_with_2(fedtiny, arguments, parts):
    said = fedtiny(*arguments)
    assert said.code == 2
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err
    assert list(Path.cwd().iterdir()) == []


def test_an_unknown_data_set_to_fetch_is_named(fedtiny):
    assert_one_sentence(fedtiny("data", "get", "mnist"), "'mnist'", "cifar10")


def test_a_process_exits_with_the_code_and_without_a_traceback(tmp_path):
    order = [sys.executable, "-m", "fedtiny", "run", "--density", "2", "--out", "run"]
    ended = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "fedtiny: error: --density must lie in (0, 1], got 2\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("result.json", b'{"accur'),
        ("result.json", b"[]"),
        ("selection.json", b'{"sel'),
        ("metrics.jsonl", b"\xff\n{}\n"),
        ("metrics.jsonl", b"{}\n{}\n"),
        ("partition.safetensors", b"{}"),
        ("config.toml", b"density = "),
    ],
)
def test_inspect_names_a_damaged_file(fedtiny, finished, name, data):
    (finished / name).write_bytes(data)
    assert_one_sentence(fedtiny("inspect", finished), name)


@pytest.mark.parametrize("command", ["run", "cost", "compare"])
def test_a_config_file_after_flags_is_told_its_place(fedtiny, command):
    said = fedtiny(command, "--density", "0.1", "my.toml")
    assert said.code == 1
    assert said.err.endswith("name the config file before all flags: my.toml --density ...\n")


@pytest.mark.parametrize("command", ["compare", "reproduce"])
def test_what_takes_up_where_it_was_stopped_says_so(fedtiny, monkeypatch, command):
    def stop(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"fedtiny.cli.{command}.Console", stop)
    said = fedtiny(command, "--out", "my runs")
    assert said.code == 130
    assert said.err == f"stopped; go on with: fedtiny {command} --out 'my runs'\n"
