"""Errors name arguments from Python and flags on the command line."""

from dataclasses import fields, is_dataclass

import pytest

import fedtiny
from fedtiny.config import Config, FleetConfig, PruningConfig, TrainConfig
from fedtiny.config.flags import as_arguments, as_flag
from fedtiny.errors import ConfigError, FedTinyError, RunError, naming_flags

from ..runs.tiny import TINY, tiny


@pytest.fixture(autouse=True)
def _from_python(_sentences_name_flags):
    with naming_flags(False):
        yield


def every_setting(kind=Config, where=""):
    for field in fields(kind):
        if is_dataclass(field.type):
            yield from every_setting(field.type, f"{where}{field.name}.")
        else:
            yield where + field.name


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Config(density=3.0), "density must lie in (0, 1], got 3"),
        (
            lambda: Config(pruning=PruningConfig(delta_r=0)),
            "pruning.delta_r must be at least 1, got 0",
        ),
        (
            lambda: Config(train=TrainConfig(lr_milestones="1,2")),
            "train.lr_milestones are those of train.lr_schedule='steps'; leave one of them out",
        ),
        (
            lambda: Config(fleet=FleetConfig(devices=3, min_replies=4)),
            "fleet.min_replies is 4, more than the devices a round asks",
        ),
        (
            lambda: Config(parameters=9),
            "parameters sizes the model 'small' alone: leave it out with 'resnet18', or take "
            "model='small'",
        ),
    ],
)
def test_a_bad_setting_is_named_as_it_was_written(make, sentence):
    with pytest.raises(ConfigError) as raised:
        make()
    assert str(raised.value) == sentence
    with naming_flags():
        assert str(raised.value).startswith("--"), "the same error on the command line"


def test_a_run_refuses_with_names_of_arguments(tmp_path):
    with pytest.raises(ConfigError, match=r"^threads=2 needs workers=1: "):
        fedtiny.run(tiny(threads=2, workers=2), out=tmp_path / "a")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(RunError, match=r"choose another out=, or .*: fedtiny\.resume\('.*full'\)"):
        fedtiny.run(TINY, out=tmp_path / "full")
    with pytest.raises(FedTinyError, match=r"^callbacks= takes a list, got function"):
        fedtiny.run(TINY, out=tmp_path / "b", callbacks=print_nothing)


def print_nothing(record):
    pass


def test_every_setting_is_known_by_its_flag():
    names = list(every_setting())
    assert len(names) > 90
    assert [as_arguments(as_flag(name)) for name in names] == names


def test_commands_and_flags_of_other_programs_stay():
    for sentence in (
        "make one with: fedtiny export DIR --format packed",
        "use torchrun --nproc-per-node 2",
        "go on with: flwr run APP --run-config 'flower.resume=true'",
        "an em dash -- and a rule ----",
    ):
        assert as_arguments(sentence) == sentence
    assert as_arguments("use --gpu.no-graphs or --simulator reference") == (
        "use gpu.graphs=False or simulator='reference'"
    )
