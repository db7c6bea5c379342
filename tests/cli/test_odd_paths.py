"""Paths that no file can have, or that lead to no file: one sentence from every command."""

import os
import shutil
from pathlib import Path

import pytest
import torch

import fedtiny as package
from fedtiny.config import Config, DataConfig
from fedtiny.data.cache import Cache
from fedtiny.data.hub import root_folder
from fedtiny.errors import ConfigError, RunError
from fedtiny.files import write_atomically

from ..runs.tiny import FLAGS
from .test_bad_input import assert_one_sentence

ODD = {
    "NUL byte": "a\0b",
    "not UTF-8": "a\udcffb",
    "unknown home": "~nosuchuser/x",
    "pipe": "pipe",
    "loop": "loop",
    "below a file": "file/x/y",
    "too long": "x" * 300,
}
COMMANDS = [
    "run FLAGS --out ODD",
    "run FLAGS --weights ODD --out o",
    "run FLAGS --data.name folder --data.root ODD --out o",
    "run FLAGS --data.name file --data.root ODD --out o",
    "run ODD",
    "resume ODD",
    "inspect ODD",
    "report ODD",
    "report FINISHED --out ODD",
    "export ODD",
    "export FINISHED --out ODD",
    "export FINISHED --format c --out ODD",
    "predict ODD FINISHED/report.html",
    "predict FINISHED ODD",
    "compare ODD",
    "cost ODD",
    "reproduce pool_flops --folder ODD --out o",
    "reproduce pool_flops --results ODD --out o",
    "flower init o --config ODD",
    "flower up ODD",
    "data get ODD",
]
REPLACED = {  # a link that leads nowhere makes room for what is written
    ("report FINISHED --out ODD", "loop"),
    ("export FINISHED --out ODD", "loop"),
}


@pytest.fixture
def place(fedtiny):
    """A folder with a pipe, a link to itself and a file."""
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    Path("file").write_text("my work")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_leads_nowhere_is_told_in_one_sentence(fedtiny, place, finished, command):
    for name, odd in ODD.items():
        arguments = []
        for word in command.split():
            word = word.replace("ODD", odd).replace("FINISHED", str(finished))
            arguments += FLAGS if word == "FLAGS" else [word]
        said = fedtiny(*arguments)
        if (command, name) not in REPLACED:
            assert_one_sentence(said)
        if name in ("NUL byte", "not UTF-8"):
            assert name in said.err
    assert (Path("file").read_text(), Path("pipe").is_fifo()) == ("my work", True)


@pytest.mark.parametrize("odd", ["a\0b", "a\udcffb", "~nosuchuser/x"])
def test_settings_and_variables_are_told_too(odd, monkeypatch):
    with pytest.raises(ConfigError, match=r"--data\.root .* (cannot be used|home folder)"):
        root_folder(DataConfig(root=odd).root) and Config(data=DataConfig(root=odd))
    with pytest.raises(ConfigError, match="--weights"):
        package.run(Config(weights=odd))
    with pytest.raises(ConfigError, match="--out"):
        package.run(Config(), out=odd)
    with pytest.raises(ConfigError, match="FEDTINY_CACHE"):
        Cache.at(odd)
    if "\0" not in odd:  # which no variable can hold
        for name, used in (("FEDTINY_DATA", root_folder), ("FEDTINY_CACHE", Cache.at)):
            monkeypatch.setenv(name, odd)
            with pytest.raises(ConfigError, match=name):
                used()


def test_a_home_folder_is_found(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert root_folder("~/data") == tmp_path / "data"


def test_a_config_file_may_not_hold_what_no_file_name_can(fedtiny):
    Path("my.toml").write_text('[data]\nroot = "a\\u0000b"\n')
    assert_one_sentence(fedtiny("run", "my.toml"), "my.toml: --data.root 'a?b'", "NUL byte")


def test_a_pipe_among_images_is_named(fedtiny, place):
    for name in "ab":
        Path("images", name).mkdir(parents=True)
    os.mkfifo("images/a/1.png")
    os.mkfifo("images/a/2.png")
    said = fedtiny("run", *FLAGS, "--data.name", "folder", "--data.root", "images")
    assert_one_sentence(said, ".png is not a regular file")


def test_a_checkpoint_of_pytorch_is_told_how_to_be_saved(fedtiny):
    torch.save({"x": torch.zeros(2)}, "weights.pt")
    said = fedtiny("run", *FLAGS, "--weights", "weights.pt")
    assert_one_sentence(said, "looks like a PyTorch checkpoint", "safetensors.torch.save_file")


def test_a_device_or_a_pipe_is_never_replaced(place):
    with pytest.raises(RunError, match="cannot write pipe: it is not a regular file"):
        write_atomically(Path("pipe"), b"x")
    assert {path.name for path in Path.cwd().iterdir()} == {"pipe", "loop", "file"}


@pytest.mark.parametrize(("value", "shown"), [("1", True), ("0", False), ("", False)])
def test_a_traceback_is_shown_where_it_is_asked_for(fedtiny, monkeypatch, value, shown):
    monkeypatch.setenv("FEDTINY_TRACEBACK", value)
    if shown:
        with pytest.raises(ConfigError):
            fedtiny("run", "no.toml")
    else:
        assert_one_sentence(fedtiny("run", "no.toml"), "no.toml")


def test_a_run_among_others_whose_name_is_no_text_is_named(fedtiny, finished):
    shutil.copytree(finished, os.fsdecode(b"runs/two\xff"))
    said = fedtiny("report", "runs", "--out", "page.html")
    assert_one_sentence(said, "the run folder 'runs/two?' cannot be used")


def test_files_too_large_to_be_read_are_told_at_once(fedtiny):
    """A file may be large and hold nothing."""
    for name in ("images/a/1.png", "images/a/2.png", "own.csv", "own.npz", "weights.safetensors"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
        os.truncate(name, 1 << 42)
    for kind, root in (("folder", "images"), ("file", "own.csv"), ("file", "own.npz")):
        said = fedtiny("run", *FLAGS, "--data.name", kind, "--data.root", root)
        assert_one_sentence(said, root)
    said = fedtiny("run", *FLAGS, "--weights", "weights.safetensors")
    assert_one_sentence(said, "larger than 68,719,476,736 bytes")
