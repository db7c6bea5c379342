"""In a notebook, one line is updated round by round, and a picture comes at the end."""

import builtins
import sys
import types

import pytest

import fedtiny
from fedtiny.drawing.figure import Figure
from fedtiny.runs.notebook import Line, NotebookReporter
from fedtiny.runs.reporter import automatic

from ..runs.tiny import TINY


class Handle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, line):
        self.shown.append(("update", line))


@pytest.fixture
def shown(monkeypatch):
    """What is displayed, in a kernel that is made up."""
    found = []

    def display(thing, display_id=False):
        found.append(("display", thing))
        return Handle(found) if display_id else None

    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return found


def test_one_line_is_updated_and_a_picture_ends_it(tmp_path, shown, capsys):
    assert type(automatic()) is NotebookReporter
    result = fedtiny.run(TINY, out=tmp_path / "run")
    assert [how for how, _ in shown] == ["display", *["update"] * 5, "display"]
    lines = [repr(thing) for _, thing in shown[:-1]]
    assert lines[0] == "round 0/3: choosing the first mask"
    assert lines[1] == "round 0/3: training"
    first = result.metrics[0]
    told = f"accuracy {first['accuracy']:.4f}, density {first['density']:.4f}, about "
    assert lines[2].startswith(f"round 1/3: {told}")
    assert lines[-1].startswith(f"round 3/3: done: accuracy {result.accuracy:.4f} at density")
    assert isinstance(shown[-1][1], Figure)
    assert shown[-1][1].name == "accuracy"
    out, err = capsys.readouterr()
    assert out.startswith("fedtiny: small (width 2) to density 0.3")
    assert (out.count("\n"), err) == (1, "")


def test_a_stopped_run_says_how_it_goes_on(tmp_path, shown):
    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedtiny.run(TINY, out=tmp_path / "run", callbacks=[stop])
    assert "round 1/3: stopped; continue with: fedtiny" in repr(shown[-1][1])
    fedtiny.resume(tmp_path / "run")
    assert [repr(thing) for _, thing in shown if "going on" in repr(thing)] == [
        "round 1/3: going on"
    ]


def test_a_reporter_of_ones_own_shows_no_picture(tmp_path, shown):
    from fedtiny.runs.reporter import Silent

    fedtiny.run(TINY, out=tmp_path / "run", reporter=Silent())
    assert shown == []


def test_a_line_is_a_bar_and_words():
    line = Line("round 1/3: <b>", 1, 3)
    assert line._repr_html_() == (
        '<div><progress value="1" max="3"></progress> <code>round 1/3: &lt;b&gt;</code></div>'
    )
