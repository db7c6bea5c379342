"""A run folder that version 0.1.0 left after its first round goes on, though names have changed."""

import json
import shutil
from pathlib import Path

import pytest

import fedtiny
from fedtiny.cli.main import dispatch
from fedtiny.config import aliases, load
from fedtiny.runs.reporter import Silent

from .tiny import differences, own_data, stop, tiny, train

OLD = Path(__file__).parent / "run_of_0_1_0"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """The folder, in a process that has warned of nothing yet."""
    monkeypatch.setattr(aliases, "_warned", set())
    return shutil.copytree(OLD, tmp_path / "run")


def test_its_config_is_understood(old):
    config = load(old / "config.toml")
    assert config.fleet.straggler_rate == 0.1
    assert (config.robustness.mean, config.robustness.max_samples) == ("median", 5000)


def test_it_goes_on_to_its_end_with_one_line_of_warning(old, capsys):
    before = (old / "metrics.jsonl").read_text()
    assert dispatch(["resume", str(old)]) == 0
    out, err = capsys.readouterr()
    assert "resumed after round 1 of 3" in out
    assert err.startswith("fedtiny: names of settings have changed: ")
    assert err.count("\n") == 1
    assert json.loads((old / "result.json").read_text())["rounds"] == 3
    assert (old / "metrics.jsonl").read_text().startswith(before)


def test_it_can_be_looked_at(old, capsys):
    assert dispatch(["inspect", str(old)]) == 0
    assert "1 of 3 rounds" in capsys.readouterr().out


def test_a_folder_with_the_old_mark_of_own_data_goes_on(tmp_path):
    complete = train(tiny(), tmp_path / "complete", data=own_data()).path
    stopped = stop(tiny(), tmp_path / "stopped", 1, data=own_data())
    text = (stopped / "config.toml").read_text()
    assert 'name = "custom:arrays"' in text
    (stopped / "config.toml").write_text(text.replace("custom:", "own:"))
    fedtiny.resume(stopped, data=own_data(), reporter=Silent())
    assert differences(complete, stopped) == ["config"]
