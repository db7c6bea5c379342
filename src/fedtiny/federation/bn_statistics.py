"""Batch-norm statistics that devices measure of one model or of many, averaged."""

from collections.abc import Mapping
from math import ceil

import numpy as np
from numpy.typing import NDArray

from fedtiny.config import SelectionConfig, TrainConfig
from fedtiny.federation.verbs import BnStatistics, SecondMoment
from fedtiny.randomness import BEFORE_ROUNDS

Statistics = Mapping[str, NDArray[np.float32]]


def freezes_bn(config: TrainConfig, round: int, rounds: int) -> bool:
    """Whether batch norm trains with the statistics received (FixBN).

    >>> [freezes_bn(TrainConfig(freeze_bn=0.5), r, 4) for r in (BEFORE_ROUNDS, 0, 1, 2, 3)]
    [False, False, False, True, True]
    """
    return round != BEFORE_ROUNDS and round >= ceil(config.freeze_bn * rounds)


def measuring(config: SelectionConfig) -> BnStatistics:
    """What devices are asked."""
    second_moment: SecondMoment = "square" if config.variance == "pooled" else "var"
    return BnStatistics(config.batch_size, config.passes, second_moment)


def from_means(arrays: Statistics, how: BnStatistics) -> Statistics:
    """Means and variances, out of what devices sent on average."""
    return pooled_variance(arrays) if how.second_moment == "square" else arrays


def pooled_variance(arrays: Statistics) -> Statistics:
    """Exact statistics of all devices' data together, by the law of total variance.

    Devices send E[x^2] beside their means; sigma^2 = E[x^2] - E[x]^2.
    """
    pooled = {}
    for name, values in arrays.items():
        stem, _, kind = name.rpartition(".")
        if kind == "running_mean":
            pooled[name] = values
            square = arrays[f"{stem}.running_square"].astype(np.float64)
            variance = square - values.astype(np.float64) ** 2
            pooled[f"{stem}.running_var"] = np.maximum(variance, 0).astype(np.float32)
    return pooled
