"""From the memory of a device to the density that it can train."""

from collections.abc import Callable
from dataclasses import replace
from math import nextafter
from typing import Unpack

from fedtiny.config import Config
from fedtiny.cost.memory import MemoryModel, total
from fedtiny.cost.workload import CostInputs, Workload
from fedtiny.errors import ConfigError


class DoesNotFit(ConfigError):  # noqa: N818
    """A budget below what a method needs at the least."""

    def __init__(self, config: Config, least: int, budget: int, memory_model: MemoryModel) -> None:
        super().__init__(
            f"{config.method} with {config.model} needs at least {least:,} bytes of memory "
            f"(--memory-model {memory_model}), more than the budget of {budget:,}"
        )
        self.least = least


def largest_density(
    config: Config, budget: int, memory_model: MemoryModel = "paper", **inputs: Unpack[CostInputs]
) -> float:
    """The largest target density whose training fits into a budget of bytes: d_target.

    The answer is exact to one weight: with one more kept, the model would not fit.
    """
    full = Workload.of(replace(config, density=1.0), **inputs)
    weights, least = full.large.param_spec.prunable_count, full.least_kept

    def needed(kept: int) -> int:
        return total(full.at(_just_reaching(kept, weights)), memory_model)

    if total(full, memory_model) <= budget:
        return 1.0
    if needed(least) > budget:
        raise DoesNotFit(config, needed(least), budget, memory_model)
    return _just_reaching(_last(lambda kept: needed(kept) <= budget, least, weights), weights)


def _last(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last number for which something holds that holds at `low` and not at `high`."""
    while high - low > 1:
        midpoint = (low + high) // 2
        low, high = (midpoint, high) if holds(midpoint) else (low, midpoint)
    return low


def _just_reaching(kept: int, weights: int) -> float:
    """The density that leaves exactly so many weights, rounding notwithstanding."""
    density = kept / weights
    while density * weights < kept and density < 1:
        density = nextafter(density, 1)
    return density
