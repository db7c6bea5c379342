"""The learning rate over the rounds, worked out by hand."""

import pytest

from fedtiny.config import TrainConfig
from fedtiny.devices.engine import optimizer
from fedtiny.devices.lr_schedule import lr_factor
from fedtiny.randomness import BEFORE_ROUNDS

HALF_ROOT = 2**0.5 / 4


def factors(rounds, **settings):
    config = TrainConfig(**settings)
    return [lr_factor(config, round, rounds) for round in range(rounds)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"lr_warmup": 3}, [1 / 4, 2 / 4, 3 / 4, 1]),
        ({"lr_schedule": "cosine"}, [1, 0.5 + HALF_ROOT, 0.5, 0.5 - HALF_ROOT]),
        ({"lr_schedule": "cosine", "lr_warmup": 2}, [1 / 3, 2 / 3, 1, 0.5]),
        ({"lr_schedule": "cosine", "lr_warmup": 2, "lr_final": 0.2}, [1 / 3, 2 / 3, 1, 0.6]),
        ({"lr_schedule": "steps"}, [1, 1, 0.1, 0.01]),
        ({"lr_schedule": "steps", "lr_gamma": 0.5, "lr_milestones": "1, 3"}, [1, 0.5, 0.5, 0.25]),
        ({"lr_schedule": "steps", "lr_warmup": 1, "lr_milestones": "3"}, [0.5, 1, 1, 0.1]),
    ],
)
def test_a_schedule_is_what_it_says(settings, expected):
    assert factors(4, **settings) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "steps"])
def test_a_run_of_one_round_has_the_full_rate(schedule):
    assert factors(1, lr_schedule=schedule) == [1]


def test_before_the_first_round_the_rate_is_full():
    config = TrainConfig(lr_schedule="cosine", lr_warmup=2)
    assert lr_factor(config, BEFORE_ROUNDS, 10) == 1


@pytest.mark.parametrize(("name", "own"), [("adam", 1e-3), ("sgd", 0.05)])
def test_the_factor_is_that_of_the_rate_and_of_nothing_else(name, own):
    plain = optimizer(TrainConfig(optimizer=name))
    half = optimizer(TrainConfig(optimizer=name), 0.5)
    assert (plain.lr, half.lr) == (own, own / 2)
    assert half.weight_decay == plain.weight_decay
    assert optimizer(TrainConfig(optimizer=name, lr=0.4), 0.5).lr == 0.2
