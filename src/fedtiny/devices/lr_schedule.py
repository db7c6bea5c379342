"""What a device works out from the config and the round: its learning rate."""

from math import ceil, cos, pi

from fedtiny.config import TrainConfig
from fedtiny.config.checks import milestones
from fedtiny.randomness import BEFORE_ROUNDS


def lr_factor(config: TrainConfig, round: int, rounds: int) -> float:
    """What a round multiplies the learning rate by; 1 before the first round.

    A warm-up of w rounds has (r + 1) / (w + 1) in round r. Cosine falls over the rounds after it.

    >>> config = TrainConfig(lr_schedule="cosine", lr_warmup=1)
    >>> [round(lr_factor(config, r, 5), 3) for r in range(5)]
    [0.5, 1.0, 0.854, 0.5, 0.146]
    """
    if round == BEFORE_ROUNDS:
        return 1.0
    if round < config.lr_warmup:
        return (round + 1) / (config.lr_warmup + 1)
    if config.lr_schedule == "cosine":
        done = (round - config.lr_warmup) / (rounds - config.lr_warmup)
        return config.lr_final + (1 - config.lr_final) * (1 + cos(pi * done)) / 2
    if config.lr_schedule == "steps":
        return config.lr_gamma ** sum(round >= start for start in _milestones(config, rounds))
    return 1.0


def highest_rate(config: TrainConfig, round: int, rounds: int) -> float:
    """The highest learning rate that a round has had, as a multiple of this round's.

    >>> config = TrainConfig(lr_schedule="steps", lr_gamma=0.5, lr_warmup=1)
    >>> [highest_rate(config, r, 4) for r in range(4)]
    [1.0, 1.0, 2.0, 4.0]
    """
    highest = lr_factor(config, min(round, config.lr_warmup), rounds)
    return highest / lr_factor(config, round, rounds)


def _milestones(config: TrainConfig, rounds: int) -> tuple[int, ...]:
    if config.lr_milestones is None:
        return (ceil(rounds / 2), ceil(rounds * 3 / 4))
    return milestones(config.lr_milestones)
