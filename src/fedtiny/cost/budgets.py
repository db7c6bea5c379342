"""From budgets of memory and FLOPs to the density, the point on the flow curve and the batch.

The order is: density, flow-beta, batch.

1. Memory sets the density, in place of the config's: the largest that fits.
2. FLOPs lower the density. With budgets `flow` a beta in [0, 1] that fits is taken first, where a
   step less does not, since accuracy grows with operations at the same number of weights; only
   where beta 1 is still too much does the density fall.
3. Where no density fits the memory of a device, the first step is left out, and the batch falls.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from math import ceil, log, nextafter
from typing import Any, Literal, TypeVar, Unpack

from fedtiny.config import Config, parse_flops, parse_size, resolve
from fedtiny.cost import flops
from fedtiny.cost.memory import MemoryModel, total
from fedtiny.cost.workload import CostInputs, Workload, method_of
from fedtiny.errors import ConfigError

BETAS = 64  # beta is walked in steps of one by this
ROUGHLY = 10  # the place on the curve is sought with iterations divided by this
NEAR = 4  # steps that such a search is exact to
SMALLEST_BATCH = 2  # of which batch norm can take statistics
C = TypeVar("C", bound=Config)


class FlopsNotKnown(ConfigError):  # noqa: N818
    """A budget of FLOPs of a method whose layer counts only training brings out."""


class DoesNotFit(ConfigError):  # noqa: N818
    """A budget below what a method needs at the least."""

    def __init__(self, sentence: str, kind: Literal["memory", "flops"], least: int) -> None:
        super().__init__(sentence)
        self.kind = kind
        self.least = least


def fitted(config: C, *, density_is_set: bool = False, **inputs: Unpack[CostInputs]) -> C:
    """The config at the point that fits its budgets of memory and FLOPs, if it has any.

    With `density_is_set` memory is not looked at: devices fit it by how they compute.
    """
    even = Workload.of(replace(_uniform(config), density=1.0), **inputs)
    inputs["flow"] = even.flow
    budget = parse_size(config.memory_budget) if config.memory_budget else None
    density = None
    if budget is not None and not density_is_set:
        density = _density_for(config, budget, **inputs)
        config = config if density is None else replace(config, density=density)
    if config.flops_budget is not None:
        _check_known(config)
        config = _within_flops(config, even, **inputs)
    if budget is None or density_is_set:
        return config
    finish = _with_smaller_batch if density is None else _still_within
    return finish(config, budget, **inputs)


def largest_density(
    config: Config,
    budget: int,
    memory_model: MemoryModel | None = None,
    **inputs: Unpack[CostInputs],
) -> float:
    """The largest target density whose training fits into a budget of bytes: d_target.

    The answer is exact to one weight: with one more kept, the model would not fit. Budgets `flow`
    are counted as uniform ones, whose memory is the same but for layers that keep all.

    Args:
        config: The settings of the run.
        budget: Bytes of a device.
        memory_model: How memory is counted: `paper` or `device`; default: the config's.
        **inputs: As for :func:`fedtiny.cost.summary`.

    Returns:
        The density.

    Raises:
        DoesNotFit: Even the fewest weights need more.

    Example:
        >>> config = fedtiny.Config(model="small", width=4)
        >>> images = {"shape": (1, 8, 8), "classes": 10, "samples": 100}
        >>> 0 < fedtiny.cost.largest_density(config, 10_000, "paper", **images) < 1
        True
    """
    model = memory_model or config.memory_model
    if resolve(config).pruning.budgets == "flow":
        config = _uniform(config)
    full = Workload.of(replace(config, density=1.0), **inputs)
    if total(full, model) <= budget:
        return 1.0
    weights, least = full.large.param_spec.prunable_count, full.least_kept

    def needed(kept: int) -> int:
        return total(full.at(_just_reaching(kept, weights)), model)

    if needed(least) > budget:
        raise _too_large(config, needed(least), budget, model)
    return _just_reaching(_last_within(range(least, weights), needed, budget), weights)


def _density_for(config: Config, budget: int, **inputs: Unpack[CostInputs]) -> float | None:
    """The largest density that fits; None of a device whose activations alone are too much."""
    try:
        return largest_density(config, budget, **inputs)
    except DoesNotFit:
        if config.memory_model == "paper":
            raise
        return None


def _with_smaller_batch(config: C, budget: int, **inputs: Unpack[CostInputs]) -> C:
    """With the largest batch that fits; if none does, with the smallest, at a lower density."""

    def needed(batch: int) -> int:
        return total(Workload.of(_with_batch(config, batch), **inputs), "device")

    if needed(SMALLEST_BATCH) > budget:
        config = _with_batch(config, SMALLEST_BATCH)
        density = largest_density(config, budget, **inputs)
        return _still_within(replace(config, density=density), budget, **inputs)
    batches = range(SMALLEST_BATCH, resolve(config).train.batch_size)
    return _with_batch(config, _last_within(batches, needed, budget))


def _within_flops(config: C, even: Workload, **inputs: Unpack[CostInputs]) -> C:
    """At the most operations that fit: along the flow curve, then at a lower density."""
    assert config.flops_budget is not None
    limit = parse_flops(config.flops_budget, flops.dense_round(even))
    if resolve(config).pruning.budgets == "flow" and "flow" in even.method.budgets:
        return _along_the_curve(config, limit, **inputs)
    work = Workload.of(config, **inputs)
    if flops.plain(work) <= limit:
        return config
    weights, least = work.large.param_spec.prunable_count, work.least_kept

    def needed(kept: int) -> int:
        return flops.plain(work.at(_just_reaching(kept, weights)))

    if needed(least) > limit:
        raise _too_slow(config, needed(least), limit, flops.dense_round(work))
    most = max(least + 1, ceil(config.density * weights))
    return replace(
        config, density=_just_reaching(_last_within(range(least, most), needed, limit), weights)
    )


def _along_the_curve(config: C, limit: int, **inputs: Unpack[CostInputs]) -> C:
    """At a beta that fits, where a step less does not; else at beta 1 and a lower density.

    Each trial prunes a network, so the place is sought with few iterations first. With all of them
    it lies some steps away, which the slope of the curve foretells.
    """

    def needed(step: int, asked: C = config) -> int:
        return flops.plain(Workload.of(_with_beta(asked, step / BETAS), **inputs))

    rough = _with_iterations(config, ceil(config.pruning.iterations / ROUGHLY))
    step, slope = _roughly(lambda step: needed(step, rough), limit)
    too_much, fits, stride = -1, BETAS + 1, 1
    while fits - too_much > 1:
        now = needed(step)
        too_much, fits = (too_much, step) if now <= limit else (step, fits)
        away = max(stride, abs(round(log(now / limit) / slope)))
        if too_much >= 0 and fits <= BETAS:
            step = (too_much + fits) // 2
        else:
            step = max(step - away, 0) if now <= limit else min(step + away, BETAS)
        stride *= 2
    if fits > BETAS:
        return _lowered(_with_beta(config, 1.0), limit, **inputs)
    return _with_beta(config, fits / BETAS)


def _roughly(needed: Callable[[int], int], limit: int) -> tuple[int, float]:
    """A step near the first one that fits, and how much the logarithm falls with a step."""
    most, least = needed(0), needed(BETAS)
    slope = max(log(most / least) / BETAS, 1 / BETAS**2)
    low, high = (0, BETAS) if most > limit else (0, 0)
    while high - low > NEAR and least <= limit:
        middle = (low + high) // 2
        low, high = (low, middle) if needed(middle) <= limit else (middle, high)
    return high, slope


def _lowered(config: C, limit: int, **inputs: Unpack[CostInputs]) -> C:
    """As many weights on the flow curve as fit, to one in a hundred: each trial prunes a network.

    Between a number that fits and one that is too much, operations are taken for a straight line;
    where one end stays twice, half of its distance is (the Illinois rule), so that both come near.
    """
    work = Workload.of(config, **inputs)
    weights, least = work.large.param_spec.prunable_count, work.least_kept

    def needed(kept: int) -> int:
        return flops.plain(work.at(_just_reaching(kept, weights)))

    bare = needed(least)
    if bare > limit:
        raise _too_slow(config, bare, limit, flops.dense_round(work))
    fits, too_much = least, work.kept
    below, above, fitted_last = float(limit - bare), float(needed(too_much) - limit), None
    while too_much - fits > max(1, fits / 100):
        tried = fits + round((too_much - fits) * below / (below + above))
        tried = min(max(tried, fits + 1), too_much - 1)
        excess = needed(tried) - limit
        if excess <= 0:
            fits, below = tried, float(-excess)
            above /= 2 if fitted_last is True else 1
        else:
            too_much, above = tried, float(excess)
            below /= 2 if fitted_last is False else 1
        fitted_last = excess <= 0
    return replace(config, density=_just_reaching(fits, weights))


def _still_within(config: C, budget: int, **inputs: Unpack[CostInputs]) -> C:
    """As many weights fewer as it takes, if layer budgets by flow need more memory than others."""
    model = config.memory_model
    while (excess := total(work := Workload.of(config, **inputs), model) - budget) > 0:
        weights, kept = work.large.param_spec.prunable_count, work.kept - ceil(excess / 8)
        if kept < work.least_kept:
            raise _too_large(config, budget + excess, budget, model)
        config = replace(config, density=_just_reaching(kept, weights))
    return config


def _check_known(config: Config) -> None:
    """One threshold over scores of a pretrained model is not known before there is one."""
    method = method_of(resolve(config))
    if not method.has_global_threshold:
        return
    why = "choose --pruning.budgets uniform, erk or flow"
    if method.global_threshold:
        why = f"{config.method} sets one threshold for all layers"
    raise FlopsNotKnown(f"--flops-budget needs layer budgets that are known before training; {why}")


def _with_batch(config: C, batch: int) -> C:
    changes: dict[str, Any] = {"train": replace(config.train, batch_size=batch)}
    return replace(config, **changes)


def _uniform(config: C) -> C:
    """With layers of one density, so that no flow is measured."""
    changes: dict[str, Any] = {"pruning": replace(config.pruning, budgets="uniform")}
    return replace(config, flops_budget=None, **changes)


def _with_iterations(config: C, iterations: int) -> C:
    changes: dict[str, Any] = {"pruning": replace(config.pruning, iterations=iterations)}
    return replace(config, **changes)


def _with_beta(config: C, beta: float) -> C:
    changes: dict[str, Any] = {"pruning": replace(config.pruning, flow_beta=beta)}
    return replace(config, **changes)


def _last_within(numbers: range, needed: Callable[[int], int], budget: int) -> int:
    """The last number whose need is within the budget, which the first one's is."""
    return numbers[max(0, bisect_right(numbers, budget, key=needed) - 1)]


def _just_reaching(kept: int, weights: int) -> float:
    """The density that leaves exactly so many weights, rounding notwithstanding."""
    density = kept / weights
    while density * weights < kept and density < 1:
        density = nextafter(density, 1)
    return density


def _too_large(config: Config, least: int, budget: int, model: MemoryModel) -> DoesNotFit:
    return DoesNotFit(
        f"{config.method} with {config.model} needs at least {least:,} bytes of memory "
        f"(--memory-model {model}), more than the budget of {budget:,}",
        "memory",
        least,
    )


def _too_slow(config: Config, least: int, limit: int, dense: int) -> DoesNotFit:
    return DoesNotFit(
        f"{config.method} with {config.model} needs at least {least:,} FLOPs in a plain round, "
        f"{100 * least / dense:.3g}% of the dense network's, more than the budget of {limit:,}",
        "flops",
        least,
    )
