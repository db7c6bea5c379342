"""Names that settings had before are understood, with one line that tells the new ones."""

from dataclasses import replace

import pytest

from fedtiny.cli.main import dispatch
from fedtiny.config import Config, aliases, from_dict, load, to_dict
from fedtiny.config.flat import flattened
from fedtiny.errors import ConfigError
from fedtiny.runs import runner

OLD = "[trust]\nmean = 'median'\nmost_samples = 7\n[fleet]\nlate_rate = 0.25\n"


@pytest.fixture(autouse=True)
def _first_time(monkeypatch):
    """A process that has warned of nothing yet."""
    monkeypatch.setattr(aliases, "_warned", set())


def assert_understood(config):
    assert (config.robustness.mean, config.robustness.max_samples) == ("median", 7)
    assert config.fleet.straggler_rate == 0.25


def test_a_file_with_old_names_is_read_with_one_line_of_warning(tmp_path, capsys):
    path = tmp_path / "old.toml"
    path.write_text(OLD)
    assert_understood(load(path))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "fedtiny: names of settings have changed: trust is now robustness, "
        "trust.most_samples is now robustness.max_samples, "
        "fleet.late_rate is now fleet.straggler_rate\n"
    )
    load(path)
    assert capsys.readouterr().err == "", "once is enough"


def test_plain_data_may_have_old_names_written_either_way(capsys):
    assert_understood(
        from_dict({"trust": {"mean": "median", "most-samples": 7}, "fleet": {"late-rate": 0.25}})
    )
    assert capsys.readouterr().err.count("\n") == 1


def test_new_names_are_read_without_a_word(capsys):
    config = replace(Config(), seed=3)
    assert from_dict(to_dict(config)) == config
    assert capsys.readouterr() == ("", "")


def test_old_and_new_name_of_one_setting_are_refused():
    both = {"fleet": {"late_rate": 0.1, "straggler_rate": 0.2}}
    with pytest.raises(ConfigError, match=r"'fleet\.late_rate' is called 'fleet\.straggler_rate'"):
        from_dict(both)
    with pytest.raises(ConfigError, match="leave one of the two out"):
        from_dict({"trust": {"trim": 0.2}, "robustness": {"trim": 0.2}})
    assert from_dict({"trust": {"trim": 0.2}, "robustness": {"mean": "median"}}).robustness == (
        from_dict({"robustness": {"trim": 0.2, "mean": "median"}}).robustness
    )


def test_a_mistake_beside_an_old_name_is_still_told():
    with pytest.raises(ConfigError, match=r"unknown key 'robustness\.most'"):
        from_dict({"trust": {"most": 3}})
    with pytest.raises(ConfigError, match="'robustness' is a table of settings"):
        from_dict({"trust": 3})


def test_settings_of_experiments_get_their_new_names():
    assert flattened({"trust": {"mean": "median"}, "fleet.late_rate": 0.1}) == {
        "robustness.mean": "median",
        "fleet.straggler_rate": 0.1,
    }


def test_marks_of_what_came_from_python():
    config = from_dict({"model": "own:Net", "data": {"name": "own:mine"}})
    assert (config.model, config.data.name) == ("custom:Net", "custom:mine")


@pytest.mark.parametrize(
    "flags",
    [
        ["--trust.mean", "median", "--trust.most-samples", "7", "--fleet.late-rate", "0.25"],
        ["--trust.mean=median", "--trust.most-samples=7", "--fleet.late-rate=0.25"],
        ["--trust.mean=median", "--trust.most_samples=7", "--fleet.late_rate", "0.25"],
        ["--robustness.mean=median", "--robustness.max-samples", "7", "--fleet.late_rate=0.25"],
    ],
)
def test_flags_may_have_old_names(flags, monkeypatch, capsys):
    found = []

    def run(config, **_):
        found.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr(runner, "run", run)
    assert dispatch(["run", "--seed", "3", *flags]) == 1
    (config,) = found
    assert config.seed == 3
    assert_understood(config)
    told = capsys.readouterr().err
    assert "--fleet.late" in told
    assert "is now --fleet.straggler-rate" in told


def test_a_flag_of_today_is_left_as_it_is(capsys):
    flags = ["--fleet.straggler-rate=0.1", "--out", "trust", "fleet.late_rate", "--no-report"]
    assert aliases.current_flags(flags) == flags
    assert capsys.readouterr().err == ""
