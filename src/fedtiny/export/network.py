"""A trained network as plain arrays: what every format is written from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedtiny.data.transforms import Preparation
from fedtiny.errors import ExportError, ModelError
from fedtiny.graph.ir import Graph, Node

Floats = NDArray[np.float32]
Values = Literal["fp32", "fp16", "int8"]


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

    graph: Graph
    weights: Mapping[str, Weights]
    norms: Mapping[str, Norm]

    def check_values(self) -> None:
        """Refuse numbers that nothing can be computed with."""
        for name, weights in self.weights.items():
            if not all(
                np.isfinite(a).all() for a in (weights.values, weights.bias) if a is not None
            ):
                raise ModelError(f"weights of {name!r:.60} are NaN or infinite")
        for name, norm in self.norms.items():
            parts = (norm.gamma, norm.beta, norm.mean, norm.variance)
            if not all(np.isfinite(part).all() for part in parts) or (norm.variance < 0).any():
                raise ModelError(f"statistics of {name!r:.60} are NaN, infinite or below 0")


@dataclass(frozen=True, eq=False)
class TinyModel:
    """A network with what is needed to use it: how pixels are normalised, and its classes' names.

    The card says where it comes from: method, density, accuracy, data, config, version. `held` is
    how the file it was read from holds its weights.
    """

    net: Lowered
    normalisation: Preparation
    classes: tuple[str, ...]
    card: Mapping[str, Any]
    held: Values = "fp32"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows and columns of an image."""
        first = self.net.graph.nodes[0]
        return first.channels, *first.size


def check_images(found: Sequence[int], wanted: tuple[int, int, int]) -> None:
    """Refuse a batch of images [N, C, H, W] that the model was not trained for."""
    if tuple(found[1:]) != wanted:
        raise ExportError(f"the model takes images of shape {wanted}, not {tuple(found[1:])}")


def described(nodes: Iterable[Node]) -> Graph:
    """The description that holds these nodes."""
    made = Graph((1, 1, 1))
    made.nodes = list(nodes)
    return made
