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
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: -b.size):
        around = [b for b in placed if b.born <= buffer.dies and buffer.born <= b.dies]
        for other in sorted(around, key=lambda b: b.start):
            if other.start < buffer.start + buffer.size:
                buffer.start = max(buffer.start, other.start + other.size)
        placed.append(buffer)
    return max(b.start + b.size for b in buffers)
