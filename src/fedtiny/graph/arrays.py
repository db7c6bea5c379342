"""A graph with the arrays of its nodes, of layers the kept weights only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, prod

import numpy as np
from numpy.typing import NDArray

from fedtiny.errors import ModelError
from fedtiny.graph.ir import Graph

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Weights:
    """The kept weights of a convolution or linear layer.

    `shape` is (filters, channels of a group, rows, columns), of a transposed convolution
    (channels, filters of a group, rows, columns), of a linear layer (neurons, inputs); `indices`
    are the sorted flat positions of the kept weights, or None where all are kept.
    """

    shape: tuple[int, ...]
    indices: NDArray[np.int64] | None
    values: Floats
    bias: Floats | None

    @property
    def size(self) -> int:
        """Number of places for weights."""
        return prod(self.shape)

    @property
    def filters(self) -> NDArray[np.int64]:
        """The filter of each kept weight: its first index."""
        return self.positions // max(1, self.size // self.shape[0])

    @property
    def positions(self) -> NDArray[np.int64]:
        """The flat position of each kept weight."""
        return np.arange(self.size) if self.indices is None else self.indices

    def dense(self) -> Floats:
        """The weights in their full shape, with zeros where none is kept."""
        if self.indices is None:
            return self.values.reshape(self.shape)
        flat = np.zeros(self.size, dtype=self.values.dtype)
        flat[self.indices] = self.values
        return flat.reshape(self.shape)


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm that is a step of its own; only batch norm has running statistics."""

    gamma: Floats
    beta: Floats
    mean: Floats | None = None
    variance: Floats | None = None
    epsilon: float = field(kw_only=True)

    @property
    def parts(self) -> tuple[Floats, ...]:
        """Its arrays: two, and two more of batch norm."""
        parts = (self.gamma, self.beta, self.mean, self.variance)
        return tuple(part for part in parts if part is not None)

    def scale_and_shift(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What batch norm multiplies each channel by and what it adds then, in float64."""
        assert self.mean is not None, "batch norm"
        assert self.variance is not None, "batch norm"
        scale = self.gamma / np.sqrt(self.variance.astype(np.float64) + self.epsilon)
        return scale, self.beta - self.mean * scale


@dataclass(frozen=True, eq=False)
class Lowered:
    """A graph and the arrays of those nodes that have some, by the node's name."""

    graph: Graph
    weights: Mapping[str, Weights]
    norms: Mapping[str, Norm]
    parameters: Mapping[str, Floats] = field(default_factory=dict)
    """What the steps that are learned tensors give, flat."""

    def check_values(self) -> None:
        """Refuse numbers that nothing can be computed with."""
        for name, weights in self.weights.items():
            arrays = (weights.values, weights.bias)
            if not all(np.isfinite(array).all() for array in arrays if array is not None):
                raise ModelError(f"weights of {name!r:.60} are NaN or infinite")
        for name, norm in self.norms.items():
            finite = all(np.isfinite(part).all() for part in norm.parts)
            if not finite or (norm.variance is not None and (norm.variance < 0).any()):
                raise ModelError(f"statistics of {name!r:.60} are NaN, infinite or below 0")
            if not (isfinite(norm.epsilon) and norm.epsilon > 0):
                raise ModelError(f"{name!r:.60} needs an epsilon above 0")
        for name, values in self.parameters.items():
            if not np.isfinite(values).all():
                raise ModelError(f"values of {name!r:.60} are NaN or infinite")
