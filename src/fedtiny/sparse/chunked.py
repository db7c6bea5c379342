"""Arrays worked through a piece at a time, large ones by several threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedtiny.cores import cores

PIECE = 1 << 15  # values that stay in a core's cache
LARGE = 1 << 20  # values that are worth several threads
THREADS = min(4, cores())


def in_chunks(size: int, work: Callable[[slice], None]) -> None:
    """Do some work on each piece of so many values; pieces must not depend on each other."""
    pieces = [slice(start, start + PIECE) for start in range(0, size, PIECE)]

    def through(share: Sequence[slice]) -> None:
        for piece in share:
            work(piece)

    if size < LARGE or THREADS == 1:
        through(pieces)
        return
    with ThreadPoolExecutor(THREADS, thread_name_prefix="pieces") as pool:
        for _ in pool.map(through, (pieces[first::THREADS] for first in range(THREADS))):
            pass
