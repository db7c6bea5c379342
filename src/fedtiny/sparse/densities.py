"""How many weights each layer keeps, so that the whole model stays within its density."""

from collections.abc import Mapping
from math import ceil, floor, log10

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ConfigError
from fedtiny.models.param_spec import ParamSpec

Counts = NDArray[np.int32]

NOISE = 0.5  # the noise e^l is uniform in +-NOISE * d
NEAR_TARGET = 0.98  # a candidate is kept when its density lies in (NEAR_TARGET * d, d]
DRAWS_AT_ONCE = 256
TRIES = 40  # rounds of draws before the noise is halved
HALVINGS = 8


def budget(param_spec: ParamSpec, density: float) -> int:
    """The most weights a model may keep: d <= d_target, in whole weights."""
    if not 0 < density <= 1:
        raise ConfigError(f"density must lie in (0, 1], got {density:g}")
    most = floor(density * param_spec.prunable_count + 1e-9)
    if most < len(param_spec.sizes):
        raise ConfigError(
            f"density {density:g} leaves {most} weights for {len(param_spec.sizes)} prunable "
            "layers that keep at least one each; choose at least "
            f"{_rounded_up(len(param_spec.sizes) / param_spec.prunable_count):g}"
        )
    return most


def uniform(param_spec: ParamSpec, density: float) -> Counts:
    """The same density in every layer."""
    return _within_budget(param_spec, density, np.full(len(param_spec.sizes), density))


def erdos_renyi_kernel(param_spec: ParamSpec, density: float) -> Counts:
    """Density by layer in proportion to (sum of dimensions) / (product of dimensions), ERK."""
    budget(param_spec, density)
    sizes = _sizes(param_spec)
    raw = np.array([sum(shape) for shape in param_spec.prunable.values()]) / sizes
    full = np.zeros(len(sizes), dtype=bool)
    while True:
        left = density * sizes.sum() - sizes[full].sum()
        scale = max(left, 0.0) / max(float((raw * sizes)[~full].sum()), 1e-12)
        overflowing = ~full & (raw * scale > 1)
        if not overflowing.any():
            return _within_budget(param_spec, density, np.where(full, 1.0, raw * scale))
        full |= overflowing


def with_floor(
    param_spec: ParamSpec, density: float, counts: Counts, floors: Mapping[str, float]
) -> Counts:
    """The same number of weights, of which no layer has less than its share of its uniform count.

    Layers above that give what others lack, in proportion to what they keep.
    """
    least = floor_of(param_spec, density, floors).astype(np.float64)
    low = np.zeros(len(counts), dtype=bool)
    while (lacking := ~low & (_scaled(counts, least, low) < least)).any():
        low |= lacking
    if not low.any():
        return counts
    return _within_budget(param_spec, density, _scaled(counts, least, low) / _sizes(param_spec))


def floor_of(param_spec: ParamSpec, density: float, floors: Mapping[str, float]) -> Counts:
    """Its share of each layer's uniform count, rounded down to whole weights, at least one."""
    shares = np.array([floors.get(layer, 0.0) for layer in param_spec.sizes])
    least: Counts = np.floor(shares * uniform(param_spec, density) + 1e-9).astype(np.int32)
    return np.maximum(least, 1)


def _scaled(
    counts: Counts, least: NDArray[np.float64], low: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Low layers at the least, the others scaled so that the total stays."""
    others = counts[~low].sum()
    return np.where(low, least, counts * (counts.sum() - least[low].sum()) / max(1, others))


def uniform_noise(
    param_spec: ParamSpec,
    density: float,
    candidates: int,
    generator: np.random.Generator,
    *,
    around: Counts | None = None,
    at_least: Counts | int = 1,
    uses: Mapping[str, int] | None = None,
) -> Counts:
    """Layer counts of a pool of candidates: d^l = d_target + e^l (Sec. 4.1.2).

    One row a candidate. Draws whose total lies outside (0.98 d, d] are thrown away, tested on
    whole weights; where no draw fits (a model of a few weights, a density near one) the noise is
    halved, and in the end left out. With layer counts to draw `around`, each layer's noise is in
    proportion to its own density. No layer has fewer weights than `at_least`. With the `uses` of a
    weight no candidate takes more operations than the counts without noise.
    """
    most = budget(param_spec, density)
    least = min(NEAR_TARGET * density * param_spec.prunable_count, most - 1)
    sizes, found = _sizes(param_spec), np.empty((0, len(param_spec.sizes)), dtype=np.int32)
    center = uniform(param_spec, density) if around is None else around
    middle = np.full(len(sizes), density) if around is None else around / sizes
    price = np.zeros_like(sizes) if uses is None else operations(param_spec, uses)
    fruitless = 0
    while len(found) < candidates and fruitless < TRIES * HALVINGS:
        noise = NOISE * middle * 0.5 ** (fruitless // TRIES)
        drawn = generator.uniform(-noise, noise, size=(DRAWS_AT_ONCE, len(sizes))) + middle
        counts = np.maximum(np.rint(np.clip(drawn, 0, 1) * sizes), at_least).astype(np.int32)
        total = counts.sum(axis=1)
        affordable = counts @ price <= center @ price
        fitting = counts[(least < total) & (total <= most) & affordable]
        found = np.concatenate([found, fitting])
        fruitless += not len(fitting)
    return np.concatenate([found, np.tile(center, (candidates, 1))])[:candidates]


def operations(param_spec: ParamSpec, uses: Mapping[str, int]) -> NDArray[np.int64]:
    """Multiply-adds of one weight of each prunable layer, for an image."""
    return np.array([uses[layer] for layer in param_spec.prunable], dtype=np.int64)


def on_the_way(param_spec: ParamSpec, counts: Counts, share: float) -> Counts:
    """Layer counts after a share of the way from a dense model to these counts.

    Every layer falls exponentially, from all of its weights at 0 to its count at 1; the total is
    then at most that of the whole model falling so.
    """
    sizes = _sizes(param_spec)
    between = np.floor(sizes * (counts / sizes) ** share + 1e-9).astype(np.int32)
    return counts if share >= 1 else np.maximum(between, counts)


def _rounded_up(density: float) -> float:
    """The density with two digits, never below itself."""
    digit = 10.0 ** (floor(log10(density)) - 1)
    return min(1.0, ceil(density / digit) * digit)


def _sizes(param_spec: ParamSpec) -> NDArray[np.int64]:
    return np.array(list(param_spec.sizes.values()), dtype=np.int64)


def _within_budget(param_spec: ParamSpec, density: float, densities: NDArray[np.float64]) -> Counts:
    """Whole weights, at least one a layer, that fill the budget and never exceed it."""
    sizes, most = _sizes(param_spec), budget(param_spec, density)
    exact = densities * sizes
    counts = np.clip(np.floor(exact + 1e-9), 1, sizes).astype(np.int64)
    while counts.sum() > most:
        counts[counts.argmax()] -= 1
    by_remainder = np.argsort(counts - exact, kind="stable")
    growable = by_remainder[(counts < sizes)[by_remainder]]
    counts[growable[: most - counts.sum()]] += 1
    return counts.astype(np.int32)
