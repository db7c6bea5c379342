"""A config survives its file, and a file that is not a config says where."""

import tomllib
from dataclasses import asdict

import pytest
from hypothesis import given

from fedtiny.config import Config, dumps, from_dict, load, resolve, to_dict
from fedtiny.errors import ConfigError

from .strategies import configs


@given(configs())
def test_every_config_survives_its_file(config):
    assert from_dict(tomllib.loads(dumps(config))) == config


@given(configs())
def test_every_config_survives_as_plain_data(config):
    assert from_dict(to_dict(config)) == config


@given(configs())
def test_resolving_twice_changes_nothing_more(config):
    assert resolve(resolve(config)) == resolve(config)


def test_the_file_holds_every_setting_that_is_not_left_open():
    config = resolve(Config())
    assert set(flat(tomllib.loads(dumps(config)))) == {
        name for name, value in flat(asdict(config)).items() if value is not None
    }


def flat(values, where=""):
    """Settings by their full name."""
    found = {}
    for name, value in values.items():
        found |= flat(value, f"{name}.") if isinstance(value, dict) else {where + name: value}
    return found


def test_what_a_file_leaves_out_keeps_its_default(tmp_path):
    path = write(tmp_path, "density = 0.2\n[fleet]\ndevices = 3\n")
    config = load(path)
    assert (config.density, config.fleet.devices) == (0.2, 3)
    assert config.rounds is None
    assert config.fleet.alpha == 0.5
    assert load(write(tmp_path, "")) == Config()


def test_keys_may_be_written_as_flags_are(tmp_path):
    path = write(tmp_path, "eval-every = 3\n[fleet]\nmin-replies = 2\n")
    config = load(path)
    assert (config.eval_every, config.fleet.min_replies) == (3, 2)


def test_a_whole_number_may_stand_for_a_real_one(tmp_path):
    config = load(write(tmp_path, "density = 1\n[train]\nlr = 1\n"))
    assert (config.density, config.train.lr) == (1.0, 1.0)
    assert isinstance(config.density, float)
    assert isinstance(config.train.lr, float)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("densty = 0.1", r"unknown key 'densty'; did you mean 'density'\?"),
        ("[fleet]\ndevicess = 3", r"unknown key 'fleet\.devicess'; did you mean 'fleet\.devices'"),
        ("[fleeet]\ndevices = 3", r"unknown key 'fleeet'; did you mean 'fleet'"),
        ("zzz = 1", r"unknown key 'zzz'$"),
        ("[trust]\nmean = 'median'", r"unknown key 'trust'"),
        ("[fleet]\nlate_rate = 0.1", r"unknown key 'fleet\.late_rate'"),
        ("rounds = 1.5", r"'rounds' must be int, got 1\.5"),
        ("rounds = true", r"'rounds' must be int, got True"),
        ("rounds = '3'", r"'rounds' must be int, got '3'"),
        ("density = 'low'", r"'density' must be float, got 'low'"),
        ("eval_devices = 1", r"'eval_devices' must be bool, got 1"),
        ("method = 3", r"'method' must be str, got 3"),
        ("fleet = 3", r"'fleet' is a table of settings, not a single value"),
        ("[density]\nx = 1", r"'density' must be float, got \{'x': 1\}"),
        ("[fleet]\npartition = 'random'", r"'fleet\.partition' must be 'dirichlet' or 'iid' or"),
        ("[selection]\npool_size = 'many'", r"'selection\.pool_size' must be int or 'auto'"),
        ("[fleet]\ndevices = [1, 2]", r"'fleet\.devices' must be int, got \[1, 2\]"),
        ("density = 2.0", r"--density must lie in \(0, 1\], got 2"),
        ("density = nan", r"--density must lie in \(0, 1\], got nan"),
        ("memory_budget = 3", r"'memory_budget' must be str, got 3"),
        ("memory_model = 'mine'", r"'memory_model' must be 'paper' or 'device', got 'mine'"),
        ("density = 0.1\nrounds = ,", r"cannot read config file .*line 2"),
        ("density = 0.1\ndensity = 0.2", r"cannot read config file .*overwrite"),
    ],
)
def test_a_bad_file_is_named_with_its_mistake(tmp_path, text, complaint):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=complaint) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no config file .*nowhere\.toml"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot read config file"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"method = '\xe9'")
    with pytest.raises(ConfigError, match=r"cannot read config file .*latin\.toml"):
        load(tmp_path / "latin.toml")


def write(folder, text):
    path = folder / "config.toml"
    path.write_text(text)
    return path
