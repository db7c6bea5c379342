"""The experiments beyond the paper: budgets, recipes and data sets, valid at every scale."""

from pathlib import Path

import pytest

from fedtiny import methods
from fedtiny.cost.network import IMAGES
from fedtiny.experiments.runner import check_config
from fedtiny.experiments.suite import Suite

SUITE = Suite.load(Path(__file__).parents[2] / "experiments" / "budgets")
BASELINES = ("FedTiny", "FL-PQSU", "SynFlow", "FedDST", "FedRTS")


def runs(name, scale):
    """Configs by the name of their row."""
    (experiment,) = SUITE.find([name])
    places = SUITE.places(experiment, SUITE.scale(scale))
    return {(p.config.data.name, p.at["run"].label): p.config for p in places}


def recipe(config):
    train, server = config.train, config.server
    return train.optimizer, train.lr, train.lr_schedule, server.optimizer


@pytest.mark.parametrize("scale", ["smoke", "mini", "paper"])
@pytest.mark.parametrize("name", [e.name for e in SUITE.experiments])
def test_every_run_can_be_made(name, scale):
    for (data, _), config in runs(name, scale).items():
        check_config(config, *IMAGES[data])


@pytest.mark.parametrize(("name", "density"), [("permille", 0.001), ("percent", 0.01)])
def test_every_baseline_has_both_layer_budgets_with_the_recipe(name, density):
    found = runs(name, "mini")
    for method in BASELINES:
        for budgets in ("uniform", "ERK"):
            config = found["cifar10", f"{method}, {budgets}"]
            assert recipe(config) == ("sgd", 0.05, "cosine", "fedavgm")
            assert config.pruning.budgets in (budgets.lower(), None)
            assert config.density == density


@pytest.mark.parametrize("name", ["permille", "percent", "vgg11"])
def test_the_paper_s_methods_stand_there_as_published_too(name):
    found = runs(name, "mini")
    for method in ("FedTiny", "FL-PQSU", "SynFlow", "FedDST"):
        ours, published = (found["cifar10", f"{method}, uniform{x}"] for x in ("", ", Adam"))
        assert recipe(published) == ("adam", 0.001, "constant", "fedavg")
        assert (ours.pruning, ours.density) == (published.pruning, published.density)


def test_every_other_method_that_prunes_has_a_row_at_a_thousandth():
    rows = {config.method for config in runs("permille", "mini").values()}
    assert set(methods.names()) - rows == {"fedavg", "small_model"}


def test_other_networks_and_data_are_beside_the_same_baselines():
    assert {(c.model, c.density) for c in runs("vgg11", "mini").values()} == {("vgg11", 0.001)}
    found = runs("data_sets", "mini")
    assert {data for data, _ in found} == {"cifar100", "svhn"}
    for data in ("cifar100", "svhn"):
        dense = {name for (own, name), c in found.items() if own == data and c.density == 1}
        assert dense == {"FedAvg", "FedAvg, Adam"}
        assert {c.method for (own, _), c in found.items() if own == data} == {
            *("fedtiny_flow", "fedtiny", "feddst", "synflow", "fedavg"),
        }
