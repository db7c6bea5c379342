"""How many weights each layer keeps, so that the whole model stays within its density."""

from math import floor

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ConfigError
from fedtiny.models.anatomy import Anatomy

Counts = NDArray[np.int32]

NOISE = 0.5  # the noise e^l is uniform in +-NOISE * d
NEAR_TARGET = 0.98  # a candidate is kept when its density lies in (NEAR_TARGET * d, d]
DRAWS_AT_ONCE = 256
TRIES = 40


def budget(anatomy: Anatomy, density: float) -> int:
    """The most weights a model may keep: d <= d_target, in whole weights."""
    if not 0 < density <= 1:
        raise ConfigError(f"density must lie in (0, 1], got {density:g}")
    most = floor(density * anatomy.prunable_count + 1e-9)
    if most < len(anatomy.sizes):
        raise ConfigError(
            f"density {density:g} leaves {most} weights for {len(anatomy.sizes)} prunable "
            "layers that keep at least one each; choose at least "
            f"{len(anatomy.sizes) / anatomy.prunable_count:.2g}"
        )
    return most


def uniform(anatomy: Anatomy, density: float) -> Counts:
    """The same density in every layer."""
    return _within_budget(anatomy, density, np.full(len(anatomy.sizes), density))


def erdos_renyi_kernel(anatomy: Anatomy, density: float) -> Counts:
    """Density by layer in proportion to (sum of dimensions) / (product of dimensions), ERK."""
    sizes = _sizes(anatomy)
    raw = np.array([sum(shape) for shape in anatomy.prunable.values()]) / sizes
    full = np.zeros(len(sizes), dtype=bool)
    while True:
        left = density * sizes.sum() - sizes[full].sum()
        scale = max(left, 0.0) / max(float((raw * sizes)[~full].sum()), 1e-12)
        overflowing = ~full & (raw * scale > 1)
        if not overflowing.any():
            return _within_budget(anatomy, density, np.where(full, 1.0, raw * scale))
        full |= overflowing


def uniform_noise(
    anatomy: Anatomy, density: float, candidates: int, generator: np.random.Generator
) -> Counts:
    """Layer counts of a pool of candidates: d^l = d_target + e^l (Sec. 4.1.2).

    One row a candidate. Draws whose total lies outside (0.98 d, d] are thrown away, tested on
    whole weights; where no draw fits (a model of a few weights, a density near one) the noise is
    halved, and in the end left out.
    """
    most = budget(anatomy, density)
    least = min(NEAR_TARGET * density * anatomy.prunable_count, most - 1)
    sizes, found = _sizes(anatomy), np.empty((0, len(anatomy.sizes)), dtype=np.int32)
    for attempt in range(TRIES * candidates):
        noise = NOISE * density * 0.5 ** (attempt // TRIES)
        drawn = generator.uniform(-noise, noise, size=(DRAWS_AT_ONCE, len(sizes))) + density
        counts = np.maximum(np.rint(np.clip(drawn, 0, 1) * sizes), 1).astype(np.int32)
        total = counts.sum(axis=1)
        found = np.concatenate([found, counts[(least < total) & (total <= most)]])
        if len(found) >= candidates:
            return found[:candidates]
    missing = candidates - len(found)
    return np.concatenate([found, np.tile(uniform(anatomy, density), (missing, 1))])


def _sizes(anatomy: Anatomy) -> NDArray[np.int64]:
    return np.array(list(anatomy.sizes.values()), dtype=np.int64)


def _within_budget(anatomy: Anatomy, density: float, densities: NDArray[np.float64]) -> Counts:
    """Whole weights, at least one a layer; what that adds is taken from the fullest layers."""
    sizes = _sizes(anatomy)
    counts = np.maximum(np.floor(densities * sizes + 1e-9), 1).astype(np.int64)
    excess = int(counts.sum()) - budget(anatomy, density)
    while excess > 0:
        fullest = int(counts.argmax())
        taken = min(excess, int(counts[fullest]) - 1)
        counts[fullest] -= taken
        excess -= taken
    return counts.astype(np.int32)
