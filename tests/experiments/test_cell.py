"""In what two runs differ, and what does not count."""

from dataclasses import replace

import pytest

from fedtiny.config import Config, GpuConfig, from_dict, resolve
from fedtiny.config.flat import flat, nested
from fedtiny.experiments.finished import unlike

from ..runs.tiny import TINY, tiny

ON_A_GPU = replace(TINY, simulator="gpu")


def test_a_config_goes_there_and_back():
    settings = flat(TINY)
    assert settings["fleet.devices"] == 3
    assert settings["data.limit_train"] == 120
    assert "data.root" not in settings
    assert from_dict(nested(settings)) == TINY


@pytest.mark.parametrize(
    ("there", "names"),
    [
        ({}, []),
        ({"gpu": {"precision": "fp32"}}, ["gpu.precision"]),
        ({"gpu": {"lanes": 3, "cards": 2}, "workers": 4}, []),
        ({"data": {"root": "there"}}, []),
        ({"rounds": 4, "train": {"lr": 0.5}}, ["rounds", "train.lr"]),
        ({"threads": 2}, ["threads"]),
        ({"simulator": "reference"}, ["simulator"]),
    ],
    ids=str,
)
def test_what_differs(there, names):
    assert unlike(ON_A_GPU, resolve(tiny(**{"simulator": "gpu"} | there))) == names


def test_what_a_machine_chooses_may_differ():
    wanted = replace(TINY, threads=None, simulator="auto")
    assert unlike(wanted, resolve(replace(ON_A_GPU, threads=8))) == []


def test_settings_of_a_gpu_mean_nothing_without_it():
    without = replace(TINY, simulator="reference")
    assert unlike(without, resolve(replace(without, gpu=GpuConfig(precision="fp32")))) == []


def test_a_preset_that_is_spelled_out_is_the_same():
    assert unlike(Config(), resolve(Config())) == []
    assert unlike(Config(rounds=16), resolve(Config())) == []
