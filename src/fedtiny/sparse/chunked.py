"""Arrays worked through a chunk at a time, large ones by several threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedtiny.cores import cores

CHUNK = 1 << 15  # values that stay in a core's cache
LARGE = 1 << 20  # values that are worth several threads
THREADS = min(4, cores())


def in_chunks(size: int, work: Callable[[slice], None]) -> None:
    """Do some work on each chunk of so many values; chunks must not depend on each other."""
    chunks = [slice(start, start + CHUNK) for start in range(0, size, CHUNK)]

    def through(share: Sequence[slice]) -> None:
        for chunk in share:
            work(chunk)

    if size < LARGE or THREADS == 1:
        through(chunks)
        return
    with ThreadPoolExecutor(THREADS, thread_name_prefix="chunks") as pool:
        for _ in pool.map(through, (chunks[first::THREADS] for first in range(THREADS))):
            pass
