"""What can be done with a kernel, wherever it runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from ctypes import Structure
from typing import Protocol

Grid = tuple[int, int, int]


class Kernel(ABC):
    """A kernel of a source; it takes one structure."""

    @abstractmethod
    def bind(self, grid: Grid, threads: int, shared: int, args: Structure) -> Callable[[], None]:
        """What launches it, with what the structure holds at that time; it keeps the structure.

        `threads` are those of a block, `shared` the bytes of its dynamic shared memory.
        """

    def launch(self, grid: Grid, threads: int, shared: int, args: Structure) -> None:
        """Launch it once."""
        self.bind(grid, threads, shared, args)()


class Kernels(Protocol):
    """The kernels of a source, by name."""

    def __getitem__(self, name: str) -> Kernel: ...
