"""What is meant where nothing is said."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.config import (
    Config,
    DataConfig,
    PruningConfig,
    SelectionConfig,
    ServerConfig,
    TrainConfig,
    from_dict,
    resolve,
    resolve_run,
    to_dict,
)
from fedtiny.errors import ConfigError


def of(name, **settings):
    return resolve(Config(data=DataConfig(name=name), **settings))


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "cinic10", "folder", "svhn"])
def test_other_data_gets_the_papers_setting(name):
    config = of(name)
    assert config.rounds == (200 if name == "svhn" else 300)
    assert (config.train.local_epochs, config.train.batch_size) == (5, 64)
    assert config.selection.pool_size == config.pool_size == 50
    assert (config.pruning.delta_r, config.pruning.r_stop) == (10, 100)
    assert config.width is None


def test_the_rest_of_the_papers_setting_is_the_default():
    config = resolve(Config())
    assert (config.fleet.devices, config.fleet.alpha, config.fleet.fraction) == (10, 0.5, 1.0)
    assert (config.selection.kind, config.selection.development_ratio) == ("adaptive_bn", 0.1)
    assert (config.pruning.granularity, config.pruning.order) == ("block", "backward")
    assert (config.train.optimizer, config.train.lr_schedule) == ("adam", "constant")
    assert (config.server.optimizer, config.pruning.budgets) == ("fedavg", "uniform")


def test_a_method_has_a_recipe_of_its_own_and_what_is_said_beats_it():
    config = resolve(Config(method="fedtiny_flow"))
    assert (config.train.optimizer, config.train.lr_schedule) == ("sgd", "cosine")
    assert (config.server.optimizer, config.server.beta1) == ("fedavgm", 0.7)
    assert (config.pruning.budgets, config.pruning.flow_floor) == ("flow", 1)
    assert (config.pruning.rescale, resolve(Config()).pruning.rescale) == ("auto", 0)
    assert config.selection.kind == "none"
    assert resolve(Config()).selection.kind == "adaptive_bn"
    assert resolve(Config()).pruning.flow_floor == 0
    assert config.train.local_epochs == resolve(Config()).train.local_epochs
    said = Config(method="fedtiny_flow", train=TrainConfig(optimizer="adam"))
    assert resolve(said).train.optimizer == "adam"


@pytest.mark.parametrize(
    ("recipe", "optimizer", "momentum", "epsilon"),
    [("paper", "adam", 0.9, 0.0), ("momentum", "sgd", 0.7, 0.01)],
)
@pytest.mark.parametrize("method", ["fedtiny", "fedtiny_flow"])
def test_a_recipe_is_the_same_for_every_method(method, recipe, optimizer, momentum, epsilon):
    config = resolve(Config(method=method, recipe=recipe))
    assert (config.recipe, config.train.optimizer) == (recipe, optimizer)
    assert (config.server.beta1, config.pruning.gradient_epsilon) == (momentum, epsilon)
    own = resolve(Config(method=method))
    assert (config.pruning.budgets, config.selection) == (own.pruning.budgets, own.selection)
    assert own.recipe == {"fedtiny": "paper", "fedtiny_flow": "momentum"}[method]


def test_the_digits_are_quick():
    config, paper = of("digits"), of("cifar10")
    assert config.rounds <= 20
    assert config.width <= 16
    assert config.pool_size <= 10
    assert config.train.local_epochs < paper.train.local_epochs
    assert config.pruning.r_stop <= config.rounds


@pytest.mark.parametrize("name", ["digits", "cifar10", "svhn"])
def test_what_is_said_beats_the_preset(name):
    said = Config(
        recipe="paper",
        width=3,
        rounds=7,
        data=DataConfig(name=name),
        train=TrainConfig(local_epochs=2, batch_size=9, optimizer="sgd", lr_schedule="cosine"),
        server=ServerConfig(optimizer="fedadam", beta1=0.5),
        selection=SelectionConfig(kind="vanilla", pool_size=4),
        pruning=PruningConfig(
            delta_r=6, r_stop=11, budgets="erk", flow_floor=0.5, rescale=0.5, gradient_epsilon=0.3
        ),
    )
    assert resolve(said) == said
    assert hash(resolve(said)) == hash(said)
    assert to_dict(resolve(said)) == to_dict(said)


@pytest.mark.parametrize(
    ("rounds", "r_stop"), [(300, 100), (150, 100), (149, 99), (30, 20), (3, 2), (1, 1)]
)
def test_pruning_ends_by_two_thirds_of_a_shorter_run(rounds, r_stop):
    assert of("cifar10", rounds=rounds).pruning.r_stop == r_stop
    said = of("cifar10", rounds=rounds, pruning=PruningConfig(r_stop=250))
    assert said.pruning.r_stop == 250


@pytest.mark.parametrize("name", ["digits", "cifar10", "svhn"])
def test_half_of_a_table_is_filled_up(name):
    config = of(name, train=TrainConfig(local_epochs=2))
    assert config.train.local_epochs == 2
    assert config.train.batch_size == of(name).train.batch_size


@pytest.mark.parametrize(
    ("density", "size"),
    [(0.001, 100), (0.002, 50), (0.005, 20), (0.01, 10), (0.04, 2), (0.05, 2), (0.1, 2), (1.0, 2)],
)
def test_the_automatic_pool_by_hand(density, size):
    config = of("cifar10", density=density, selection=SelectionConfig(pool_size="auto"))
    assert config.selection.pool_size == "auto"
    assert config.pool_size == size


@given(st.floats(1e-4, 1))
def test_the_automatic_pool_is_a_tenth_over_the_density(density):
    config = Config(density=density, selection=SelectionConfig(pool_size="auto"))
    assert config.pool_size == max(2, round(0.1 / density))


def test_resolved_and_open_settings_differ_where_they_say_something_else():
    assert resolve(Config()) != Config()
    assert resolve(Config()).train != TrainConfig()
    assert Config() != "a config"
    assert TrainConfig() != SelectionConfig()


@pytest.mark.parametrize("kind", [resolve, resolve_run])
def test_nothing_that_a_computation_needs_is_open(kind):
    config = kind(Config())
    left_to_the_method = {"growth", "drop", "stop_share"}
    pruning = [v for name, v in vars(config.pruning).items() if name not in left_to_the_method]
    needed = [config.rounds, *pruning, config.selection.pool_size]
    assert None not in [*needed, config.train.local_epochs, config.train.batch_size]
    with pytest.raises(ConfigError, match="'rounds' must be int, got None"):
        replace(config, rounds=None)
    with pytest.raises(ConfigError, match=r"'train' must be a ResolvedTrain, got TrainConfig"):
        replace(config, train=TrainConfig())


def test_who_computes_is_settled_for_a_run():
    config = resolve_run(Config(workers=None, threads=None))
    assert (config.simulator, config.workers, config.threads) == ("reference", 1, 1)
    with pytest.raises(ConfigError, match="'workers' must be int, got None"):
        replace(config, workers=None)


@pytest.mark.parametrize(
    ("rounds", "pruning", "r_stop"),
    [
        (90, {"stop_share": 0.75}, 67),
        (300, {"stop_share": 1.0}, 300),
        (1, {"stop_share": 0.1}, 1),
        (90, {"stop_share": 0.75, "r_stop": 30}, 30),
        (90, {}, 10),
    ],
)
def test_adjustments_end_by_a_share_of_the_rounds(rounds, pruning, r_stop):
    assert resolve(from_dict({"rounds": rounds, "pruning": pruning})).pruning.r_stop == r_stop
