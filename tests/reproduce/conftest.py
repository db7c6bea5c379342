"""The paper's suite, a tiny one, and what came of the tiny one."""

import shutil

import pytest

from fedtiny.cli.main import dispatch
from fedtiny.reproduce.suite import Suite

from .own import job, make, write_suite


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
    account = make(job(suite, out, ["all"]))
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
