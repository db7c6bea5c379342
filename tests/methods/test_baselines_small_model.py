"""The small dense model: how wide it is, and that a run remembers what was asked for."""

from dataclasses import replace

import pytest

import fedtiny
from fedtiny import config as configs
from fedtiny import methods, models
from fedtiny.config import Config, resolve
from fedtiny.errors import FedTinyError, ModelError
from fedtiny.models.networks import parameters, width_for
from fedtiny.runs.reporter import Silent

from ..runs.tiny import stop, tiny, train

ASKED = tiny(method="small_model", model="resnet18", width=2, density=0.05, rounds=2)
LARGE = 11_384  # parameters of ResNet18 at width 2, for one channel and ten classes


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize("width", [1, 2, 7, 16])
@pytest.mark.parametrize(("channels", "classes"), [(1, 10), (3, 100)])
def test_the_formula_counts_what_the_network_has(channels, classes, width):
    network = models.build("small", (channels, 8, 8), classes, width=width)
    assert parameters(channels, classes, width) == count(network)


@pytest.mark.parametrize("budget", [163, 500, 5_000, 111_740])
def test_the_width_is_the_largest_within_the_budget(budget):
    width = width_for(budget, 1, 10)
    assert parameters(1, 10, width) <= budget < parameters(1, 10, width + 1)


def test_a_width_by_hand():
    """9 w (1 + 10 w) weights, 14 w of batch norm and 10 (4 w + 1) of the head."""
    assert [parameters(1, 10, width) for width in (1, 2)] == [99 + 14 + 50, 378 + 28 + 90]
    assert [width_for(budget, 1, 10) for budget in (163, 495, 496)] == [1, 1, 2]


@pytest.mark.parametrize(("density", "paper"), [(0.01, 111_740), (0.001, 11_174)])
def test_the_paper_s_sizes_for_resnet18(density, paper):
    method = methods.create(resolve(Config(method="small_model", density=density)))
    resolved = method.resolve(method.config, lambda: 11_173_962)
    assert resolved.parameters == pytest.approx(paper, abs=1)
    assert resolved.parameters <= density * 11_173_962


def test_settling_twice_is_settling_once():
    method = methods.create(ASKED)
    once = method.resolve(ASKED, lambda: LARGE)
    assert (once.model, once.width, once.parameters) == ("small", None, 569)

    def never():
        raise AssertionError("the large network was counted again")

    assert method.resolve(once, never) == once


def test_no_other_method_changes_the_model():
    for name in methods.OURS.keys() - {"small_model"}:
        config = resolve(tiny(method=name))
        resolved = methods.create(config).resolve(config, lambda: 1)
        assert resolved == replace(config, density=resolved.density)
        assert resolved.density == (1 if methods.find(name).dense else config.density)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return train(ASKED, tmp_path_factory.mktemp("small") / "run")


def test_the_run_trains_the_widest_network_that_fits(ran):
    assert count(models.build("resnet18", (1, 8, 8), 10, width=2)) == LARGE
    assert count(ran.network) == parameters(1, 10, 2) == 496
    assert 496 <= 0.05 * LARGE < parameters(1, 10, 3)
    assert ran.density == 1


def test_the_saved_config_says_what_was_asked_for(ran):
    saved = configs.load(ran.path / "config.toml")
    assert (saved.model, saved.width, saved.density) == ("resnet18", 2, 0.05)
    assert saved.parameters is None


def test_a_saved_config_gives_the_same_run_again(ran, tmp_path):
    saved = configs.load(ran.path / "config.toml")
    again = train(saved, tmp_path / "again")
    model = "model.safetensors"
    assert (again.path / model).read_bytes() == (ran.path / model).read_bytes()


def test_it_is_resumed_as_the_small_model(ran, tmp_path):
    stop(ASKED, tmp_path / "half", 1)
    resumed = fedtiny.resume(tmp_path / "half", reporter=Silent())
    model = "model.safetensors"
    assert (resumed.path / model).read_bytes() == (ran.path / model).read_bytes()


def test_a_budget_below_the_smallest_network_is_refused(tmp_path):
    with pytest.raises(ModelError, match="at least 163 parameters, more than the 113"):
        train(tiny(method="small_model", model="resnet18", width=2, density=0.01), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_a_small_model_of_the_small_model_is_smaller_or_refused(tmp_path):
    try:
        result = train(tiny(method="small_model", width=4, density=0.3), tmp_path / "run")
    except FedTinyError:
        return
    assert count(result.network) <= 0.3 * parameters(1, 10, 4)
