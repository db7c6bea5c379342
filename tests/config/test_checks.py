"""A config that cannot work is refused in one sentence that names the flag."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedtiny.config import (
    Config,
    DataConfig,
    FleetConfig,
    PrivacyConfig,
    PruningConfig,
    RobustnessConfig,
    SelectionConfig,
    ServerConfig,
    TrainConfig,
    dumps,
    from_dict,
    resolve,
)
from fedtiny.errors import ConfigError

NAN = math.nan
NOT_A_SHARE = [0.0, -0.1, 1.5, 2.0, NAN, math.inf]
NOT_A_RATE = [-0.1, 1.0, 1.5, NAN]
BELOW_ONE, BELOW_TWO = [0, -3], [1, 0, -3]
SECTIONS = {
    "data": DataConfig,
    "fleet": FleetConfig,
    "train": TrainConfig,
    "selection": SelectionConfig,
    "pruning": PruningConfig,
    "server": ServerConfig,
    "robustness": RobustnessConfig,
    "privacy": PrivacyConfig,
}
BAD = {
    "density": NOT_A_SHARE,
    "fleet.alpha": [0.0, -1.0, NAN],
    "fleet.fraction": NOT_A_SHARE,
    "fleet.fail-rate": NOT_A_RATE,
    "fleet.straggler-rate": NOT_A_RATE,
    "fleet.min-replies": [0, 11],
    "selection.development-ratio": NOT_A_SHARE,
    "selection.pool-size": BELOW_ONE,
    "train.lr": [0.0, -0.1, NAN],
    "train.pretrain-epochs": [-1],
    "train.lr-warmup": [-1],
    "train.lr-final": [-0.1, 1.1, NAN],
    "train.lr-gamma": NOT_A_SHARE,
    "train.lr-milestones": ["half", "3,2", "2,2", "", "-1", "1.5", "1,7"],
    "train.proximal-mu": [-0.1, NAN, math.inf],
    "server.lr": [0.0, -0.1, NAN],
    "server.tau": [0.0, -0.1, NAN],
    **dict.fromkeys(["server.beta1", "server.beta2", "server.average-decay"], NOT_A_RATE),
    "server.average-start": [-1],
    "data.cutout": [-1],
    "robustness.trim": [0.0, -0.1, 0.5, 1.0, NAN],
    "robustness.clip-norm": [-0.1, NAN, math.inf],
    "robustness.max-samples": BELOW_ONE,
    "privacy.epsilon": [0.0, -1.0, NAN, math.inf],
    "privacy.clip-start": [0.0, -1.0, NAN, math.inf],
    "privacy.delta": [0.0, 1.0, NAN],
    "privacy.clip-quantile": [0.0, 1.0, NAN],
    "privacy.noise-multiplier": [-0.1, NAN, math.inf],
    "privacy.clip": [0.0, -1.0, NAN],
    "privacy.clip-rate": [0.0, NAN, math.inf],
    "seed": [-1, 2**63, 2**64],
    "pruning.iterations": BELOW_ONE,
    **dict.fromkeys(["rounds", "width", "parameters", "threads", "workers"], BELOW_ONE),
    **dict.fromkeys(["eval-every", "checkpoint-every", "data.limit-train"], BELOW_ONE),
    **dict.fromkeys(["data.limit-test", "data.n-shots", "fleet.devices"], BELOW_ONE),
    **dict.fromkeys(["fleet.shards-per-device", "train.local-epochs"], BELOW_ONE),
    **dict.fromkeys(["selection.passes", "pruning.delta-r", "pruning.r-stop"], BELOW_ONE),
    **dict.fromkeys(["train.batch-size", "fleet.min-samples"], BELOW_TWO),
    "selection.batch-size": BELOW_TWO,
}


@pytest.mark.parametrize(
    ("flag", "value"), [(flag, value) for flag, bad in BAD.items() for value in bad]
)
def test_what_cannot_work_is_refused_by_name(flag, value):
    with pytest.raises(ConfigError, match=f"--{flag} ") as raised:
        with_setting(flag, value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("density", 1.0),
        ("density", 1e-6),
        ("fleet.alpha", 1e-3),
        ("fleet.min-replies", 10),
        ("fleet.fail-rate", 0.0),
        ("train.pretrain-epochs", 0),
        ("train.batch-size", 2),
        ("selection.pool-size", 1),
        ("robustness.clip-norm", 0.0),
        ("robustness.trim", 0.49),
        ("robustness.max-samples", 1),
        ("privacy.clip", math.inf),
        ("privacy.delta", 0.999),
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("fleet.fraction", 1e-12),
    ],
)
def test_the_edge_of_what_works_is_allowed(flag, value):
    assert with_setting(flag, value) != Config() or value == 0


def test_a_round_must_ask_as_many_devices_as_it_needs():
    asked = FleetConfig(devices=10, fraction=0.25, min_replies=3)
    assert asked.asked == 3
    assert FleetConfig(fraction=1e-12).asked == 1
    assert Config(fleet=asked).fleet == asked
    with pytest.raises(ConfigError, match=r"--fleet\.min-replies is 4, more than the devices"):
        Config(fleet=FleetConfig(devices=10, fraction=0.25, min_replies=4))


def test_rounds_that_settings_name_are_those_of_the_run():
    with pytest.raises(ConfigError, match=r"--train\.lr-warmup is 3, as long as the run or longer"):
        Config(rounds=3, train=TrainConfig(lr_warmup=3))
    with pytest.raises(ConfigError, match=r"--server\.average-start is 3, after the last round"):
        Config(rounds=3, server=ServerConfig(average="ema", average_start=3))
    with pytest.raises(ConfigError, match=r"--train\.lr-warmup is 16, as long"):
        resolve(Config(train=TrainConfig(lr_warmup=16)))
    steps = TrainConfig(lr_schedule="steps", lr_milestones="30, 60")
    assert from_dict(tomllib.loads(dumps(Config(train=steps)))).train == steps


WRONG_TYPES = [
    ("rounds", 2.5, r"'rounds' must be int, got 2\.5"),
    ("rounds", True, r"'rounds' must be int, got True"),
    ("rounds", np.int64(3), r"'rounds' must be int, got (np\.int64\()?3"),
    ("seed", 1.5, r"'seed' must be int, got 1\.5"),
    ("seed", None, r"'seed' must be int, got None"),
    ("density", "0.1", r"'density' must be float, got '0\.1'"),
    ("density", True, r"'density' must be float, got True"),
    ("density", np.ones(99), r"'density' must be float, got array\(.{,60}$"),
    ("eval_devices", 1, r"'eval_devices' must be bool, got 1"),
    ("model", ["a\nb"], r"'model' must be str, got \['a\\nb'\]"),
    ("simulator", "cuda", r"'simulator' must be 'auto' or 'reference' or 'gpu', got 'cuda'"),
    ("simulator", None, r"'simulator' must be 'auto' or"),
    ("fleet", {"devices": 3}, r"'fleet' must be a FleetConfig, got \{.*\}; fedtiny.*from_dict"),
    ("fleet", FleetConfig, r"'fleet' must be a FleetConfig, got <class"),
    ("fleet", FleetConfig(devices="3"), r"'fleet\.devices' must be int, got '3'"),
    ("fleet", FleetConfig(partition="x"), r"'fleet\.partition' must be 'dirichlet' or"),
    ("selection", SelectionConfig(pool_size=2.5), r"'selection\.pool_size' must be int or 'auto'"),
    ("data", DataConfig(root=Path("x")), r"'data\.root' must be str, got "),
]


@pytest.mark.parametrize(("name", "value", "complaint"), WRONG_TYPES)
def test_what_is_of_another_type_is_refused_by_name(name, value, complaint):
    with pytest.raises(ConfigError, match=complaint) as raised:
        Config(**{name: value})
    assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match=complaint):
        replace(Config(), **{name: value})


def test_numbers_of_another_make_are_allowed_where_a_file_can_hold_them():
    config = Config(density=np.float64(0.1), fleet=FleetConfig(alpha=1, fraction=1))
    assert from_dict(tomllib.loads(dumps(config))) == config


def test_parameters_are_for_the_small_model():
    assert Config(model="small", parameters=1000).parameters == 1000
    with pytest.raises(ConfigError, match=r"--parameters sizes .*'small' alone.*'resnet18'"):
        Config(parameters=1000)


def with_setting(flag, value):
    section, _, name = flag.replace("-", "_").rpartition(".")
    settings = {name: value}
    return Config(**({section: SECTIONS[section](**settings)} if section else settings))
