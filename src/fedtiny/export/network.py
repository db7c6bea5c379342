"""A trained network as plain arrays: what every format is written from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedtiny.native.description import Description, Node

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Weights:
    """The kept weights of a convolution or linear layer.

    `shape` is (filters, channels, rows, columns) or (neurons, inputs); `indices` are the sorted
    flat positions of the kept weights, or None where all are kept.
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
        """The filter of each kept weight."""
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
    """A batch norm that stays a step of its own, with its running statistics."""

    gamma: Floats
    beta: Floats
    mean: Floats
    variance: Floats
    epsilon: float


@dataclass(frozen=True, eq=False)
class Lowered:
    """A network's steps and the arrays of those that have some, by the step's name.

    Dropout, which does nothing outside training, is no longer among the steps.
    """

    description: Description
    weights: Mapping[str, Weights]
    norms: Mapping[str, Norm]


def described(nodes: Iterable[Node]) -> Description:
    """The description that holds these nodes."""
    first, *rest = nodes
    made = Description((first.channels, *first.size))
    made.nodes += rest
    return made
