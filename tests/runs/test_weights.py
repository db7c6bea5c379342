"""Weights to begin with: strict, the same bytes when a run goes on."""

import json

import pytest
import torch
from safetensors.torch import load_file, save, save_file

import fedtiny
from fedtiny import models
from fedtiny.errors import ConfigError, ModelError, RunError
from fedtiny.runs.reporter import Silent
from fedtiny.runs.weights import Weights

from .tiny import differences, stop, tiny, train


def network(seed=9, classes=10):
    return models.build("small", (1, 8, 8), classes, width=2, seed=seed)


@pytest.fixture
def file(tmp_path):
    save_file(network().state_dict(), tmp_path / "own.safetensors")
    return tmp_path / "own.safetensors"


def test_a_run_begins_with_them_and_is_what_the_network_itself_gives(tmp_path, file):
    config = tiny(rounds=1, train={"pretrain_epochs": 0})
    begun = train(tiny(rounds=1, weights=str(file), train={"pretrain_epochs": 0}), tmp_path / "run")
    same = train(config, tmp_path / "own", model=network())
    other = train(config, tmp_path / "other")
    states = [load_file(run.path / "model.safetensors") for run in (begun, same, other)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])
    about = json.loads((begun.path / "about.json").read_text())
    assert about["weights"] == {"file": str(file), "blake2b": Weights.read(file).digest}


def test_a_run_goes_on_with_the_bytes_that_it_began_with(tmp_path, file):
    config = tiny(weights=str(file))
    whole = train(config, tmp_path / "whole")
    half = stop(config, tmp_path / "half", 1)
    file.unlink()
    fedtiny.resume(half, reporter=Silent())
    assert differences(whole.path, half) == []


def test_a_copy_that_was_changed_is_refused(tmp_path, file):
    half = stop(tiny(weights=str(file)), tmp_path / "half", 1)
    save_file(network(seed=1).state_dict(), half / "weights.safetensors")
    with pytest.raises(RunError, match="not what this run began with"):
        fedtiny.resume(half, reporter=Silent())


def test_a_model_of_one_s_own_takes_them_too(tmp_path, file):
    config = tiny(rounds=1, weights=str(file))
    one, two = (train(config, tmp_path / str(s), model=network(seed=s)) for s in (1, 2))
    found = [load_file(run.path / "model.safetensors") for run in (one, two)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def changed(**changes):
    state = network().state_dict() | changes
    return {name: value for name, value in state.items() if value is not None}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (changed(**{"0.weight": None}), r"it lacks '0\.weight'$"),
        (changed(**{"0.weight": None, "4.weight": None}), r"it lacks '0\.weight' and 1 more$"),
        (changed(extra=torch.zeros(1)), "it has 'extra', which the network has not$"),
        (
            changed(**{"13.bias": torch.zeros(7)}),
            r"own\.safetensors does not fit the network: '13\.bias' is \[7\] and not \[10\]$",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(state, said):
    with pytest.raises(ModelError, match=said):
        Weights(save(state), "own.safetensors").load_into(network())


def test_counters_of_batch_norm_may_be_missing_and_half_precision_is_widened():
    state = {n: v for n, v in network().state_dict().items() if not n.endswith("tracked")}
    halves = {name: value.half() for name, value in state.items()}
    other = network(seed=4)
    Weights(save(halves), "half").load_into(other)
    assert torch.equal(other.state_dict()["0.weight"], halves["0.weight"].float())


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read --weights"):
        train(tiny(weights=str(tmp_path / "none")), tmp_path / "run")
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        train(tiny(weights=str(tmp_path / "bad")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_method_with_a_network_of_its_own_does_not_take_them(tmp_path):
    big = models.build("resnet18", (1, 8, 8), 10, width=2)
    save_file(big.state_dict(), tmp_path / "big.safetensors")
    own = {"model": "resnet18", "method": "small_model", "density": 0.5}
    config = tiny(**own, weights=str(tmp_path / "big.safetensors"))
    with pytest.raises(ConfigError, match="trains 'small'; leave --weights out"):
        train(config, tmp_path / "run")
