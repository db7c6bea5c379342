"""A sparse vector: the form in which a few gradients of a large layer travel."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SparseVector:
    """Values at sorted, distinct positions of a flat layer; everywhere else zero."""

    size: int
    indices: NDArray[np.int32]
    values: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.indices.ndim != 1 or self.indices.shape != self.values.shape:
            raise ValueError("a sparse vector needs one value for each position")
        if len(self.indices) and (
            self.indices[0] < 0
            or self.indices[-1] >= self.size
            or (np.diff(self.indices) <= 0).any()
        ):
            raise ValueError(f"positions must be sorted, distinct and below {self.size}")

    def __len__(self) -> int:
        return len(self.indices)

    def dense(self) -> NDArray[np.float32]:
        """The whole flat layer, zeros included."""
        flat = np.zeros(self.size, dtype=np.float32)
        flat[self.indices] = self.values
        return flat
