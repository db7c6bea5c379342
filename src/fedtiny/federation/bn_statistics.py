"""Batch-norm statistics that devices measure of one model or of many, averaged."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedtiny.config import SelectionConfig
from fedtiny.federation.verbs import BnStatistics, SecondMoment

Statistics = Mapping[str, NDArray[np.float32]]


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
