"""Where the values of a graph lie in one arena of memory."""

from collections.abc import Sequence
from typing import Protocol


class Buffer(Protocol):
    """Room for a value between the step that makes it and the last one that reads it."""

    born: int
    dies: int
    start: int

    @property
    def size(self) -> int:
        """Number of values."""


def place(buffers: Sequence[Buffer]) -> int:
    """Set where each buffer starts; returns the arena's size.

    The largest come first, each as low as those that live at the same time allow;
    csrc/lifetimes.cpp does it natively.
    """
    return _place_in_order(_largest_first(buffers))


TRIES = 20
MAX_TRIED = 1000  # buffers; the time grows with the square of their number


def place_tightly(buffers: Sequence[Buffer]) -> int:
    """Like `place`, in less room where that is found: what ends last comes first the next time."""
    order, best = _largest_first(buffers), (place(buffers), _largest_first(buffers))
    for _ in range(TRIES if len(buffers) <= MAX_TRIED else 0):
        arena = _place_in_order(order)
        best = min(best, (arena, order), key=lambda found: found[0])
        last = max(order, key=lambda b: b.start + b.size)
        order = [last, *(b for b in order if b is not last)]
    return _place_in_order(best[1])


def _largest_first(buffers: Sequence[Buffer]) -> list[Buffer]:
    return sorted(buffers, key=lambda b: -b.size)


def _place_in_order(buffers: Sequence[Buffer]) -> int:
    placed: list[Buffer] = []
    for buffer in buffers:
        buffer.start = 0
        around = [b for b in placed if b.born <= buffer.dies and buffer.born <= b.dies]
        for other in sorted(around, key=lambda b: b.start):
            if other.start < buffer.start + buffer.size:
                buffer.start = max(buffer.start, other.start + other.size)
        placed.append(buffer)
    return max(b.start + b.size for b in buffers)
