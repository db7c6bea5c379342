"""A sparse vector: the form in which a few gradients of a large layer travel."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

VALUE_BYTES = 4  # float32
INDEX_BYTES = 4  # int32


def is_position_list(positions: NDArray[Any], size: int) -> bool:
    """Whether these are sorted, distinct positions of a flat layer of that size."""
    if positions.ndim != 1 or not len(positions):
        return positions.ndim == 1
    if positions.dtype.kind not in "iu":
        return False
    increasing = (positions[1:] > positions[:-1]).all()
    return bool(increasing and positions[0] >= 0 and positions[-1] < size)


@dataclass(frozen=True, eq=False)
class SparseVector:
    """Values at sorted, distinct positions of a flat layer; everywhere else zero."""

    size: int
    indices: NDArray[np.int32]
    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.indices.shape != self.values.shape:
            raise ValueError("a sparse vector needs one value for each position")
        if not is_position_list(self.indices, self.size):
            raise ValueError(f"positions must be sorted, distinct and below {self.size}")

    def __len__(self) -> int:
        return len(self.indices)

    def dense(self) -> NDArray[np.float32]:
        """The whole flat layer, zeros included."""
        flat = np.zeros(self.size, dtype=np.float32)
        flat[self.indices] = self.values
        return flat


def all_alike(size: int, positions: NDArray[np.int32]) -> SparseVector:
    """A vector with the value 1 at each of these positions."""
    return SparseVector(size, positions, np.ones(len(positions), dtype=np.float32))
