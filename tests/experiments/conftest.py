"""The paper's suite, a tiny one, a comparison of two methods, and what came of them."""

import shutil

import pytest

from fedtiny.cli.main import dispatch
from fedtiny.config.flat import flat
from fedtiny.experiments import runner
from fedtiny.experiments.compare import EQUAL, Grid, equal
from fedtiny.experiments.runner import Runner
from fedtiny.experiments.suite import Suite

from ..runs.tiny import tiny
from .own import QUIET, make, sweep, write_suite


def based(**changes):
    """The tiny config on the terms of a comparison."""
    return equal(flat(tiny(**{"rounds": 2} | changes)) | EQUAL)


BASE = based()


@pytest.fixture(scope="session")
def paper_suite():
    return Suite.load()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The files of the tiny suite; not to be changed."""
    return write_suite(tmp_path_factory.mktemp("experiments"))


@pytest.fixture(scope="session")
def suite(folder):
    return Suite.load(folder)


@pytest.fixture(scope="session")
def _made(suite, tmp_path_factory):
    out = tmp_path_factory.mktemp("made")
    account = make(sweep(suite, out, ["all"]))
    assert (account.failed, account.without_data, account.out_of_time) == ({}, {}, False)
    return out


@pytest.fixture
def made(_made, tmp_path):
    """Where all runs of the tiny suite lie, finished; a copy to play with."""
    return shutil.copytree(_made, tmp_path / "made")


@pytest.fixture
def reproduce(tmp_path, monkeypatch, capsys, folder):
    """`fedtiny reproduce` in an empty folder: its exit code, what it said, and its errors."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("FEDTINY_DATA", str(tmp_path / "no data"))
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments, own=True):
        capsys.readouterr()
        flags = ["--folder", str(folder)] if own else []
        try:
            code = dispatch(["reproduce", *map(str, arguments), *flags])
        except SystemExit as left:
            code = left.code
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def grid():
    """Four runs of a quarter of a second."""
    return Grid(("fedavg", "fl_pqsu"), (0.3,), (0, 1), BASE)


@pytest.fixture(scope="session")
def compared(grid, tmp_path_factory):
    """Where the runs of the grid lie; not to be changed."""
    out = tmp_path_factory.mktemp("compared") / "out"
    Runner(out, QUIET).run(grid.cells())
    return out


@pytest.fixture
def counted(monkeypatch):
    """Which folders are run and which resumed, in order."""
    calls = []

    def watched(name, plain):
        def call(*given, **named):
            calls.append((name, named["out"].name if name == "run" else given[0].name))
            return plain(*given, **named)

        return call

    for name in ("run", "resume"):
        monkeypatch.setattr(runner, name, watched(name, getattr(runner, name)))
    return calls


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """`fedtiny compare` in an empty folder: its exit code, what it said, and its errors."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments):
        capsys.readouterr()
        try:
            code = dispatch(["compare", *map(str, arguments)])
        except SystemExit as left:
            code = left.code
        return code, *capsys.readouterr()

    return call
