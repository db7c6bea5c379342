"""What a device can afford: the options that fit a memory budget."""

from collections.abc import Mapping
from dataclasses import replace

from fedtiny.native.library import NativeError
from fedtiny.native.model import NativeModel
from fedtiny.native.options import Memory, Options

SMALLEST_BATCH = 2  # batch norm cannot measure one image


def largest_fit(
    model: NativeModel, options: Options, counts: Mapping[str, int], budget: int
) -> tuple[Options, Memory]:
    """The largest batch up to that of `options` that fits, and how; worked out without taking any.

    Of ways that allow the same batch the first is taken: as asked for, with recomputing, with half
    storage, with both. A budget for which no batch is small enough is refused.
    """
    best: tuple[Options, Memory] | None = None
    for chosen in _ways(options):
        batch = _largest_batch(model, chosen, counts, budget)
        if batch and (best is None or batch > best[0].batch):
            fitting = _sized(chosen, batch)
            best = fitting, model.plan(fitting, counts)
    if best is None:
        least = min(model.plan(_sized(way, SMALLEST_BATCH), counts).total for way in _ways(options))
        raise NativeError(
            f"a device needs at least {least / 1e6:.1f} MB to train this model, "
            f"more than the budget of {budget / 1e6:.1f} MB"
        )
    return best


def _ways(options: Options) -> list[Options]:
    ways = [
        options,
        replace(options, recompute=True),
        replace(options, storage="float16"),
        replace(options, storage="float16", recompute=True),
    ]
    return list(dict.fromkeys(ways))


def _sized(options: Options, batch: int) -> Options:
    return replace(options, batch=batch, forward_batch=min(options.forward_batch or batch, batch))


def _largest_batch(
    model: NativeModel, options: Options, counts: Mapping[str, int], budget: int
) -> int:
    """By bisection, since memory grows with the batch; 0 if none fits."""
    fits, too_large = 0, options.batch + 1
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        taken = model.plan(_sized(options, middle), counts).total
        fits, too_large = (middle, too_large) if taken <= budget else (fits, middle)
    return fits if fits >= SMALLEST_BATCH else 0
