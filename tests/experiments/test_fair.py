"""The experiments on equal terms: held-out images choose, and nothing else differs."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from fedtiny import cost
from fedtiny.config.flat import flat
from fedtiny.cost.network import IMAGES
from fedtiny.experiments.runner import check_config
from fedtiny.experiments.suite import Suite

ROOT = Path(__file__).parents[2]
SUITE = Suite.load(ROOT / "experiments" / "fair")
RECIPE = {"train.optimizer", "train.lr_schedule", "server.optimizer", "server.beta1"}


def places(scale, name="recipes"):
    (experiment,) = SUITE.find([name])
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


def better_recipes():
    """The recipe of the larger mean over the held-out seeds of both, by method and density."""
    cells = json.loads((ROOT / "results" / "heldout" / "recipes.json").read_text())["cells"]
    found = {}
    for cell in cells:
        own, seed = cell["settings"], cell["seed"]
        if own["pruning.iterations"] == 100 and own["pruning.budgets"] != "global":
            by_seed = found.setdefault((own["method"], own["density"]), {}).setdefault(seed, {})
            by_seed[own["recipe"]] = cell["numbers"]["accuracy"]
    pairs = {key: [by for by in seeds.values() if len(by) == 2] for key, seeds in found.items()}
    return {
        key: max(("momentum", "paper"), key=lambda recipe: fmean(by[recipe] for by in both))
        for key, both in pairs.items()
        if both
    }


@pytest.mark.parametrize("name", ["permille", "percent"])
def test_each_method_trains_by_the_recipe_that_is_better_on_held_out_images(name):
    better = better_recipes()
    for place in places("mini", name):
        assert place.config.recipe == better[place.config.method, place.config.density]
        assert place.config.data.validation == 0
        check_config(place.config, *IMAGES["cifar10"])


@pytest.mark.parametrize("name", ["permille", "percent"])
def test_every_method_stands_at_each_cost(name):
    rows = [place.at["run"].label for place in places("mini", name)]
    blocks = ("uniform", "ERK", "flow")
    for method in ("FedTiny", "FL-PQSU", "FedDST", "FedRTS"):
        assert {f"{method}, {budgets}" for budgets in blocks} <= {*rows}
    assert {"SynFlow, one threshold", "SynFlow, one threshold, rescaled"} <= {*rows}
    assert sum(row.startswith("FedTiny-Flow, at") for row in rows) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["permille", "percent"])
def test_rows_of_a_block_are_within_a_tenth_of_each_other_s_operations(name):
    """By the cost model; one threshold over scores is not known before training."""
    plain = {}
    for place in places("mini", name):
        if place.config.method in ("fedtiny_flow", "fl_pqsu"):
            known = {"shape": (3, 32, 32), "classes": 10, "samples": 4995}
            costs = cost.summary(replace(place.config, seed=10), **known)
            plain[place.at["run"].label] = costs["flops_plain"]
    for ours, theirs in (("FedTiny's", "uniform"), ("ERK's", "ERK"), ("SynFlow's", "flow")):
        ratio = plain[f"FedTiny-Flow, at {ours} operations"] / plain[f"FL-PQSU, {theirs}"]
        assert 0.9 < ratio < 1.05
