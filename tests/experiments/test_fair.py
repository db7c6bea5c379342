"""The experiments on equal terms: held-out images choose, and nothing else differs."""

from pathlib import Path

import pytest

from fedtiny.config.flat import flat
from fedtiny.cost.network import IMAGES
from fedtiny.experiments.runner import check_config
from fedtiny.experiments.suite import Suite

SUITE = Suite.load(Path(__file__).parents[2] / "experiments" / "fair")
RECIPE = {"train.optimizer", "train.lr_schedule", "server.optimizer", "server.beta1"}


def places(scale):
    (experiment,) = SUITE.find(["recipes"])
    return SUITE.places(experiment, SUITE.scale(scale))


@pytest.mark.parametrize("scale", ["smoke", "heldout"])
def test_recipes_are_compared_on_held_out_images_without_defenses(scale):
    for place in places(scale):
        config = place.config
        assert config.data.validation == 0.1
        assert config.robustness.bound == config.robustness.reject == 0
        check_config(config, *IMAGES[config.data.name])


def test_both_recipes_differ_in_nothing_else():
    runs = {place.where("run", "recipe"): flat(place.config) for place in places("heldout")}
    for (run, recipe), ours in runs.items():
        other = runs[run, {"paper": "momentum", "momentum": "paper"}[recipe]]
        changed = {name for name in ours if ours[name] != other[name]}
        assert changed == {"recipe", "pruning.gradient_epsilon", *RECIPE}


def test_the_methods_of_the_choice():
    found = {(p.config.method, p.config.density) for p in places("heldout")}
    methods = {
        *("fl_pqsu", "snip", "synflow", "grasp", "prunefl", "feddst", "lotteryfl"),
        *("fedtiny", "fedrts", "fedtiny_flow"),
    }
    assert found == {("fedavg", 1.0), *((m, d) for m in methods for d in (0.001, 0.01))}
