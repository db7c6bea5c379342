"""Whether the first steps of a program are computed by bands of rows, how many, and how high."""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from math import prod

from fedtiny.export.c_bands import BANDED, Schedule
from fedtiny.export.c_buffers import Placing
from fedtiny.export.c_steps import Program, Step
from fedtiny.graph.arrays import Weights

MOST_EXTRA = 0.1
"""What bands may cost, of the network's multiply-adds."""
LEAST_SAVED = 0.05
"""What bands must save, of the arena. Where several save the same but for so much, cost decides."""
HEIGHTS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Rows of the image that a band may have."""
LISTED, KEPT_WITH_ALL, OF_A_FILTER, MOVED = 5, 1.5, 45, 0.5
"""The cost of one more band in multiply-adds: of a kept weight, where others are pruned or none is,
of a filter, of a value that moves. Fitted to instructions of a Cortex-M4F."""


def schedule(
    program: Program, zeros: Mapping[int, int], weights: Mapping[str, Weights]
) -> Schedule | None:
    """The bands that lower the peak of memory the most, or nothing where none do."""
    held = Placing(program, zeros, None).held_at_a_time
    allowed = (1 - LEAST_SAVED) * max(held)
    last = max(number for number, values in enumerate(held) if values > allowed)
    banded = list(takewhile(lambda step: step.action in BANDED, program.steps[1:]))
    tried = _tried(program, zeros, weights, range(max(1, last), len(banded) + 1))
    found = [each for each in tried if each[0] <= allowed]
    if not found:
        return None
    least = min(peak for peak, _, _ in found)
    close = (each for each in found if each[0] <= (1 + LEAST_SAVED) * least)
    return min(close, key=lambda each: each[1])[2]


def _tried(
    program: Program,
    zeros: Mapping[int, int],
    weights: Mapping[str, Weights],
    counts: range,
) -> Iterator[tuple[int, float, Schedule]]:
    """What may be done: the peak of memory, the extra work, how."""
    most = MOST_EXTRA * work(program, weights)
    image_rows = program.shapes[program.steps[0].gives][1]
    for count in counts:
        for height in HEIGHTS:
            tried = Schedule(program, count, height)
            repeated = extra_work(tried, weights)
            if height < image_rows and repeated <= most:
                placing = Placing(program, zeros, tried)
                extra = repeated + MOVED * sum(buffer.moved for buffer in placing.buffers)
                if extra <= most:
                    yield max(placing.held_at_a_time), extra, tried


def work(program: Program, weights: Mapping[str, Weights]) -> int:
    """Multiply-adds of an image."""
    return sum(
        weights[step.node.name].values.size * prod(program.shapes[step.gives][1:])
        for step in program.steps
        if _is_layer(step)
    )


def extra_work(schedule: Schedule, weights: Mapping[str, Weights]) -> float:
    """What bands repeat, in multiply-adds."""
    extra = 0.0
    for step in schedule.steps:
        if _is_layer(step):
            held = weights[step.node.name]
            of_a_weight = LISTED if held.values.size < held.size else KEPT_WITH_ALL
            once = of_a_weight * held.values.size + OF_A_FILTER * held.shape[0]
            extra += once * (schedule.calls(step) - 1)
    return extra


def _is_layer(step: Step) -> bool:
    return step.convolves or step.action == "connect"
