"""The second protocol of the literature: as published at the scale `paper`, and valid at all."""

from pathlib import Path

import pytest

from fedtiny import methods
from fedtiny.cost.network import IMAGES
from fedtiny.experiments.runner import check_config
from fedtiny.experiments.suite import Suite

SUITE = Suite.load(Path(__file__).parents[2] / "experiments" / "later")
LATER = {"ssfl", "fedsgc", "set", "fedrts", "fedfit", "fedmef"}


def places(scale):
    (experiment,) = SUITE.experiments
    return SUITE.places(experiment, SUITE.scale(scale))


@pytest.mark.parametrize("scale", ["smoke", "mini", "paper"])
def test_every_run_can_be_made(scale):
    found = places(scale)
    assert LATER <= {place.config.method for place in found} <= set(methods.OURS)
    for place in found:
        shape, classes = IMAGES[place.config.data.name]
        check_config(place.config, shape, classes)
        assert place.config.pruning.r_stop < place.config.rounds


def test_it_is_as_published():
    for place in places("paper"):
        config = place.config
        assert (config.rounds, config.train.local_epochs, config.train.batch_size) == (500, 5, 64)
        assert (config.fleet.devices, config.fleet.asked, config.fleet.alpha) == (100, 10, 0.5)
        assert (config.train.optimizer, config.train.lr) == ("sgd", 0.01)
        pruning = config.pruning
        assert (pruning.budgets, pruning.delta_r, pruning.r_stop) == ("erk", 10, 300)
        assert pruning.rate == 0.4


def test_mini_scales_with_the_rounds():
    config = places("mini")[0].config
    assert (config.rounds, config.pruning.delta_r, config.pruning.r_stop) == (90, 2, 54)
    assert config.fleet.asked == 10
