"""Epsilon: what the releases of a run may reveal of one device, by `dp-accounting`."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf
from typing import Any, Literal

from fedtiny.extras import require

Accountant = Literal["rdp", "pld"]
Sampling = Literal["poisson", "fixed"]
LEAST_NOISE = 0.1  # multiplier below which none is searched for
TOLERANCE = 1e-4  # of a noise multiplier that is searched for


@dataclass(frozen=True)
class Release:
    """One sum over sampled devices under Gaussian noise, each device's part clipped.

    The noise multiplier is the standard deviation of the noise over the clip.
    """

    noise_multiplier: float
    sampling: Sampling
    rate: float
    """Chance of a device to be asked, or share of the devices that is."""
    devices: int

    @property
    def asked(self) -> float:
        """How many devices are asked, or expected to be."""
        if self.sampling == "poisson":
            return self.rate * self.devices
        return max(1, ceil(round(self.rate * self.devices, 9)))

    def event(self) -> Any:
        """The release as an event of dp-accounting.

        With Poisson sampling data sets differ by a device more or less, which changes the sum by
        the clip. With a fixed number one device is replaced, which changes it by twice the clip.
        """
        dp = require("dp_accounting", extra="dp")
        if self.sampling == "poisson":
            gaussian = dp.GaussianDpEvent(self.noise_multiplier)
            return gaussian if self.rate == 1 else dp.PoissonSampledDpEvent(self.rate, gaussian)
        gaussian = dp.GaussianDpEvent(self.noise_multiplier / 2)
        return dp.SampledWithoutReplacementDpEvent(self.devices, int(self.asked), gaussian)


Spent = Sequence[tuple[Release, int]]
"""Releases, each with how many times it was made."""


def epsilon(spent: Spent, delta: float, accountant: Accountant = "rdp") -> float:
    """The epsilon of all releases together at this delta; infinite without noise."""
    return _epsilon(tuple(spent), delta, accountant)


@lru_cache(maxsize=4)
def _epsilon(spent: tuple[tuple[Release, int], ...], delta: float, accountant: Accountant) -> float:
    if not spent:
        return 0.0
    if any(release.noise_multiplier == 0 for release, _ in spent):
        return inf
    dp = require("dp_accounting", extra="dp")
    account = _fresh(accountant, spent[0][0].sampling)
    with _without_warnings():
        for release, times in spent:
            account.compose(dp.SelfComposedDpEvent(release.event(), times))
        return float(account.get_epsilon(delta))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Orders that do not converge are left out of the minimum; this is no news to a user."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _fresh(accountant: Accountant, sampling: Sampling) -> Any:
    """An accountant of nothing yet, under the relation of data sets that fits the sampling."""
    dp, kind = require("dp_accounting", extra="dp"), require(f"dp_accounting.{accountant}", "dp")
    relation = dp.NeighboringRelation
    if accountant == "pld":
        return kind.PLDAccountant(relation.ADD_OR_REMOVE_ONE)
    poisson = sampling == "poisson"
    return kind.RdpAccountant(
        neighboring_relation=relation.ADD_OR_REMOVE_ONE if poisson else relation.REPLACE_ONE
    )


@lru_cache(maxsize=8)
def noise_for(
    budget: float, delta: float, release: Release, times: int, accountant: Accountant = "rdp"
) -> float:
    """The least noise multiplier, from 0.1 up, with which so many releases stay within a budget."""
    dp = require("dp_accounting", extra="dp")
    least = replace(release, noise_multiplier=LEAST_NOISE)
    if epsilon([(least, times)], delta, accountant) <= budget:
        return LEAST_NOISE

    def events(noise: float) -> Any:
        own = replace(release, noise_multiplier=noise)
        return dp.SelfComposedDpEvent(own.event(), times)

    with _without_warnings():
        found = dp.calibrate_dp_mechanism(
            lambda: _fresh(accountant, release.sampling),
            events,
            budget,
            delta,
            bracket_interval=dp.LowerEndpointAndGuess(LEAST_NOISE, 1.0),
            tol=TOLERANCE,
        )
    return float(found)
