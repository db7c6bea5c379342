"""Whatever is wrong, one clear sentence says so, and nothing is left behind."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedtiny.native.library import available

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


SENTENCES = Path(__file__).with_name("sentences.json")
"""What is said of every bad setting and config file, word for word; the only place that holds it.

After rewording write it again with WRITE_SENTENCES=1 in the environment, and read the difference.
"""


def test_every_bad_setting_and_config_file_is_told_as_it_was(fedtiny, tmp_path):
    known = json.loads(SENTENCES.read_text())
    said = {
        "flags": {flags: of_flags(fedtiny, flags.split()) for flags in known["flags"]},
        "files": {text: of_file(fedtiny, text) for text in known["files"]},
    }
    text = json.dumps(said, indent=1).replace(str(tmp_path), "FOLDER") + "\n"
    if os.environ.get("WRITE_SENTENCES"):
        SENTENCES.write_text(text)
    assert json.loads(text) == known


def of_flags(fedtiny, flags):
    """What is said of flags, with a folder named and without; none is left behind."""
    said, unnamed = (fedtiny("run", *FLAGS, *flags, *out) for out in (("--out", "run"), ()))
    assert_one_sentence(said)
    assert (unnamed.code, unnamed.err) == (said.code, said.err)
    assert list(Path.cwd().iterdir()) == [], flags
    return said.err.removesuffix("\n")


def of_file(fedtiny, text):
    """What is said of a config file, which is named; Python's own words differ by version."""
    Path("my.toml").write_text(text)
    said = fedtiny("run", "my.toml", *FLAGS)
    assert_one_sentence(said, "my.toml")
    assert [path.name for path in Path.cwd().iterdir()] == ["my.toml"]
    Path("my.toml").unlink()
    return re.sub(r": [^:]* \(at line", ": ... (at line", said.err.removesuffix("\n"))


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
    really_open = os.open

    def open_to_read(path, flags, *arguments, **named):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise error
        return really_open(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", open_to_read)
    said = fedtiny("resume", stopped)
    assert_one_sentence(said, f"cannot write to the run folder {stopped}")


@pytest.mark.parametrize("command", ["resume", "inspect"])
def test_a_folder_that_is_no_run_is_named(fedtiny, tmp_path, command):
    said = fedtiny(command, tmp_path)
    assert_one_sentence(said, f"{tmp_path} is not a run folder", "config.toml")
    said = fedtiny(command, tmp_path / "nowhere")
    assert_one_sentence(said, f"there is no {tmp_path / 'nowhere'}; give the folder of a run")


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


def test_a_config_that_was_edited_is_named_with_the_difference(fedtiny, stopped):
    text = (stopped / "config.toml").read_text()
    (stopped / "config.toml").write_text(text.replace("width = 2", "width = 3"))
    assert_one_sentence(
        fedtiny("resume", stopped), "config.toml was edited", "width was 2 and is 3"
    )


@pytest.mark.parametrize("limit", [0, 10**6])
def test_memory_that_is_not_there_is_said_before_training(fedtiny, monkeypatch, limit):
    monkeypatch.setattr("fedtiny.runs.inputs.free_memory", lambda: limit)
    said = fedtiny("run", *FLAGS, "--width", "64", "--out", "run")
    assert_one_sentence(said, "a network of 372,682 parameters needs 6 MB", "lower --width")
    assert not Path("run").exists()


def test_memory_that_the_system_refuses_is_told(fedtiny, monkeypatch):
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8")):
        monkeypatch.setattr("fedtiny.runs.runner.run", lambda *_, e=error, **__: throw(e))
        assert_one_sentence(fedtiny("run", *FLAGS), "there is not enough memory")


def throw(error):
    raise error


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_system_that_fails_anywhere_is_told(fedtiny, monkeypatch, code):
    """Where nobody expects it."""
    error = OSError(code, os.strerror(code), "somewhere")
    monkeypatch.setattr("fedtiny.cli.list.Console", lambda *_: throw(error))
    said = fedtiny("list", "methods")
    assert_one_sentence(said, f"the system refuses: somewhere: {os.strerror(code)}")


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["list", "methods"]])
def test_an_output_that_is_full_ends_in_one_sentence(arguments):
    with FULL.open("w") as full:
        command = [sys.executable, "-m", "fedtiny", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "No space left on device" in done.stderr


NATIVE = (*FLAGS, "--device-backend", "native")


@pytest.mark.skipif(not available(), reason="needs the native library")
def test_a_program_comes_from_flags_only(fedtiny, tmp_path):
    Path("my.toml").write_text('[device]\npython = "./evil"\n')
    said = fedtiny("run", "my.toml", *FLAGS)
    assert_one_sentence(said, "my.toml names a program", "--device.python")
    said = fedtiny("compare", "my.toml", "--methods", "fedavg", *FLAGS)
    assert_one_sentence(said, "names a program", "--device.python")
    said = fedtiny("run", "my.toml", *NATIVE, "--device.python", "/nowhere/python")
    assert_one_sentence(said, "cannot start the Python '/nowhere/python'")


def test_a_run_folder_starts_no_program(fedtiny, stopped, tmp_path):
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    evil.chmod(0o755)
    path, text = stopped / "config.toml", (stopped / "config.toml").read_text()
    path.write_text(text.replace("[device]", f'[device]\npython = "{evil}"'))
    said = fedtiny("resume", stopped)
    assert_one_sentence(said, "config.toml names a program", "give it again with --device.python")
    for command in ("inspect", "report"):
        assert fedtiny(command, stopped).code == 0
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("command", ["resume", "inspect"])
def test_a_damaged_line_of_metrics_is_named(fedtiny, stopped, command):
    path = stopped / "metrics.jsonl"
    path.write_text('{"round_number": 1, "accu\n' + path.read_text())
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
