"""What the server and a device say to each other: plain records that may cross a network."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

Arrays = Mapping[str, NDArray[Any]]
HOPELESS_LOSS = 1e38
"""What a device sends in place of a candidate's loss that is not finite: no reply may hold such."""


@dataclass(frozen=True)
class Verb:
    """One thing a device does; an engine has a method of this name. Options are plain JSON."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


Program = tuple[Verb, ...]


@dataclass(frozen=True)
class Request:
    """What the server asks of a device."""

    action: str
    method: str
    round: int
    program: Program
    theta: Theta
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What a device answers; `samples` is the number its figures stand for.

    A reply's theta may have a mask of its own. `gradients` are sparse, by layer;
    `arrays` are dense (batch-norm statistics, losses); `metrics` are single numbers.
    """

    device: int
    samples: int
    theta: Theta | None = None
    gradients: Mapping[str, SparseVector] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def train(epochs: int, sum_dense_gradients: bool = False) -> Verb:
    """Train on the device's own data (Alg. 2, lines 6 to 8).

    On request the device also sums the full gradients of all prunable weights over every batch
    and sends their mean, as PruneFL asks of it.
    """
    extra = {"sum_dense_gradients": True} if sum_dense_gradients else {}
    return Verb("train", {"epochs": epochs, **extra})


def prune_and_grow(counts: Mapping[str, int], epsilon: float = 0.0) -> Verb:
    """Grow and drop so many weights a layer on the device itself, as FedDST does."""
    return Verb("prune_and_grow", _measured(counts, epsilon))


def top_gradients(counts: Mapping[str, int], epsilon: float = 0.0) -> Verb:
    """Find the largest gradients of pruned weights, so many a layer (Alg. 2, line 12)."""
    return Verb("top_gradients", _measured(counts, epsilon))


def _measured(counts: Mapping[str, int], epsilon: float) -> dict[str, Any]:
    """How many gradients, and the least epsilon of batch norm while they are measured."""
    return {"counts": dict(counts), **({"epsilon": epsilon} if epsilon else {})}


def bn_statistics(batch_size: int, passes: int = 1, second_moment: str = "var") -> Verb:
    """Measure the batch-norm statistics of every candidate (Alg. 1, line 5).

    The second moment is sent as variance (`var`) or, to be pooled exactly, as E[x^2] (`square`).
    """
    options = {"batch_size": batch_size, "passes": passes, "second_moment": second_moment}
    return Verb("bn_statistics", options)


def losses() -> Verb:
    """Measure the loss of every candidate (Alg. 1, line 21)."""
    return Verb("losses")


def evaluate() -> Verb:
    """Measure loss and accuracy on the device's own data."""
    return Verb("evaluate")


def pool_arrays(counts: NDArray[np.int32], statistics: Arrays | None = None) -> Arrays:
    """The arrays that turn a theta into a candidate pool, with its batch-norm statistics."""
    return {"pool.counts": counts, **(statistics or {})}
