"""The command line as a user meets it, without a process for each call."""

import shutil
from dataclasses import dataclass

import pytest

from fedtiny.cli.main import dispatch

from ..runs.tiny import TINY, stop, train


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def fedtiny(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder of its own, without data sets."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FEDTINY_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("FEDTINY_CACHE", str(tmp_path / "cache"))
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments):
        capsys.readouterr()
        try:
            code = dispatch([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return call


@pytest.fixture(scope="session")
def _finished_once(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("finished") / "run").path


@pytest.fixture(scope="session")
def _stopped_once(tmp_path_factory):
    return stop(TINY, tmp_path_factory.mktemp("stopped") / "run", 2)


@pytest.fixture
def finished(_finished_once, tmp_path):
    """The folder of the tiny run; a copy to play with."""
    return shutil.copytree(_finished_once, tmp_path / "finished")


@pytest.fixture
def stopped(_stopped_once, tmp_path):
    """The folder of the tiny run, stopped after two of three rounds; a copy to play with."""
    return shutil.copytree(_stopped_once, tmp_path / "stopped")
