"""A config that cannot work is refused in one sentence that names the flag."""

import math

import pytest

from fedtiny.config import (
    Config,
    DataConfig,
    FleetConfig,
    PruningConfig,
    SelectionConfig,
    TrainConfig,
    TrustConfig,
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
    "trust": TrustConfig,
}
BAD = {
    "density": NOT_A_SHARE,
    "fleet.alpha": [0.0, -1.0, NAN],
    "fleet.fraction": NOT_A_SHARE,
    "fleet.fail-rate": NOT_A_RATE,
    "fleet.late-rate": NOT_A_RATE,
    "fleet.min-replies": [0, 11],
    "selection.development-ratio": NOT_A_SHARE,
    "selection.pool-size": BELOW_ONE,
    "train.lr": [0.0, -0.1, NAN],
    "train.pretrain-epochs": [-1],
    "data.cutout": [-1],
    "trust.trim": [0.0, -0.1, 0.5, 1.0, NAN],
    "trust.clip-norm": [-0.1, NAN, math.inf],
    "trust.most-samples": BELOW_ONE,
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
        ("trust.clip-norm", 0.0),
        ("trust.trim", 0.49),
        ("trust.most-samples", 1),
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


def test_parameters_are_for_the_small_model():
    assert Config(model="small", parameters=1000).parameters == 1000
    with pytest.raises(ConfigError, match=r"--parameters sizes .*'small' alone.*'resnet18'"):
        Config(parameters=1000)


def with_setting(flag, value):
    section, _, name = flag.replace("-", "_").rpartition(".")
    settings = {name: value}
    return Config(**({section: SECTIONS[section](**settings)} if section else settings))
