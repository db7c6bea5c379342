"""The commands of a report really repeat the run."""

import shlex
from dataclasses import replace

import pytest
import tyro

from fedtiny.cli.run import Arguments
from fedtiny.config import Config, DataConfig, load, resolve
from fedtiny.report.run import commands, flags, read
from fedtiny.runs.folder import RunFolder

from ..runs.tiny import TINY, tiny


def parsed(words):
    return tyro.cli(Arguments, args=words, default=Arguments(config=Config())).config


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        Config(),
        Config(data=DataConfig(name="cifar10", augment=False), density=0.01, threads=2, workers=1),
        tiny(pruning={"progressive": False, "reclaim": True}, fleet={"partition": "iid"}),
        tiny(memory_budget="3MB", eval_devices=True, selection={"pool_size": "auto"}),
        Config(method="fedtiny_flow"),
        tiny(method="fedtiny_flow", selection={"kind": "adaptive_bn"}, pruning={"flow_floor": 0.0}),
    ],
)
def test_flags_ask_for_the_same_run(config):
    resolved = resolve(config)
    again = resolve(parsed(flags(resolved)))
    assert flags(again) == flags(resolved)
    assert replace(again, workers=None) == replace(resolved, workers=None)


def test_a_finished_run_can_be_repeated_by_its_config(finished):
    (_, again), (_, by_flags), (_, inspect) = commands(read(RunFolder(finished)))
    assert again == f"fedtiny run {finished / 'config.toml'} --out NEW_FOLDER"
    assert shlex.split(inspect) == ["fedtiny", "inspect", str(finished)]
    words = shlex.split(by_flags)
    assert words[:2] == ["fedtiny", "run"]
    assert flags(resolve(parsed(words[2:]))) == flags(load(finished / "config.toml"))


def test_a_run_on_own_data_is_repeated_from_python(evil):
    (what, call), *_ = commands(read(RunFolder(evil)))
    assert "from Python" in what
    assert call.startswith("fedtiny.run(")


@pytest.mark.parametrize(
    ("config", "named", "given"),
    [
        (tiny(data={"name": "custom:mine"}), "your own data)", "data=..."),
        (tiny(model="custom:Net"), "your own model)", "model=..."),
        (
            tiny(model="custom:Net", data={"name": "custom:mine"}),
            "your own data and model)",
            "data=..., model=...",
        ),
    ],
)
def test_only_what_is_ones_own_must_be_given_again(finished, config, named, given):
    (what, call), *_ = commands(replace(read(RunFolder(finished)), config=config))
    assert what.endswith(named)
    assert (
        call
        == f"fedtiny.run(fedtiny.config.load(Path({str(finished / 'config.toml')!r})), {given})"
    )
