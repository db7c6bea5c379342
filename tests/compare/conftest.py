"""A comparison of two methods, made once, and the command line without a process a call."""

import pytest

from fedtiny.cli.main import dispatch
from fedtiny.compare import execute
from fedtiny.compare.grid import Grid
from fedtiny.runs.reporter import Silent

from ..runs.tiny import tiny

BASE = tiny(rounds=2)


@pytest.fixture(scope="session")
def grid():
    """Four runs of a quarter of a second."""
    return Grid(("fedavg", "fl_pqsu"), (0.3,), (0, 1), BASE)


@pytest.fixture(scope="session")
def compared(grid, tmp_path_factory):
    """Where the runs of the grid lie; not to be changed."""
    out = tmp_path_factory.mktemp("compared") / "out"
    execute.execute(grid.cells(), out, lambda name: Silent())
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
        monkeypatch.setattr(execute, name, watched(name, getattr(execute, name)))
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
