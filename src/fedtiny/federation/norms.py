"""The norms of the parts of a reply, by which devices are compared."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, sqrt

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.messages import Reply
from fedtiny.sparse.mean import in_chunks
from fedtiny.sparse.theta import Theta, statistics_places

Part = tuple[str, str]
"""What a norm is of, and the layer or the name of the array."""
WEIGHTS, STATISTICS = ("update", ""), ("batch-norm statistics", "")
GRADIENTS, ARRAY = "gradients", "array"
LOSSES, LEVEL = ("losses", ""), ("level of losses", "")
METRIC = ("loss", "")
PIECE = 1 << 13  # values of an inner product; OpenBLAS has threads from 10,000 on
SQUARES = (1e-20, 1e37)  # sums of squares that float32 has with all its digits
LEAST_METRIC = 1.0  # losses below it are not told apart
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """The norms of a reply's parts, and the losses of candidates that it tells."""

    norms: Mapping[Part, float]
    losses: Doubles | None = None
    samples: int = 1

    @classmethod
    def of(cls, reply: Reply, sent: Theta, has_losses: bool) -> "Measured":
        """Of a reply to a question with this theta."""
        norms: dict[Part, float] = {}
        if reply.theta is not None:
            norms[WEIGHTS], norms[STATISTICS] = step_norms(reply.theta, sent)
        norms |= {(GRADIENTS, n): norm(own.values) for n, own in reply.gradients.items()}
        arrays = {n: array for n, array in reply.arrays.items() if not has_losses or n != "losses"}
        norms |= {(ARRAY, n): norm(np.asarray(array)) for n, array in arrays.items()}
        if "loss" in reply.metrics:
            norms[METRIC] = max(abs(reply.metrics["loss"]), LEAST_METRIC)
        losses = reply.arrays["losses"].astype(np.float64) if has_losses else None
        return cls(norms, losses, reply.samples)


def norm(values: NDArray[np.generic], before: NDArray[np.float32] | None = None) -> float:
    """The Euclidean norm of values, or of their difference from others.

    It is computed in float32, or in float64 where squares are too large or too small for that.
    """
    flat = values.reshape(-1)
    if flat.dtype == np.float32:
        square = _square(flat, before, np.float32)
        if SQUARES[0] < square < SQUARES[1]:
            return sqrt(square)
    return sqrt(_square(flat, before, np.float64))


def _square(
    flat: NDArray[np.generic],
    before: NDArray[np.float32] | None,
    dtype: type[np.float32] | type[np.float64],
) -> float:
    """The sum of squares, chunk by chunk, or infinity."""
    squares: dict[int, float] = {}

    def add(chunk: slice) -> None:
        own: NDArray[np.floating] = flat[chunk].astype(dtype, copy=False)
        with np.errstate(over="ignore", under="ignore"):
            if before is not None:
                own = np.subtract(own, before[chunk], dtype=dtype)
            squares[chunk.start] = product(own, own)

    in_chunks(flat.size, add)
    return fsum(squares.values())


def product(one: NDArray[np.floating], other: NDArray[np.floating]) -> float:
    """The inner product of two chunks, in pieces for which BLAS starts no threads: these spin."""
    starts = range(0, len(one), PIECE)
    return fsum(float(np.dot(one[k : k + PIECE], other[k : k + PIECE])) for k in starts)


def step_norms(theta: Theta, sent: Theta) -> tuple[float, float]:
    """The norms of a device's step away from what it was sent: of weights, and of statistics.

    Under a mask of its own the step of a grown weight starts at zero.
    """
    before = sent if theta.mask == sent.mask else sent.remasked(theta.mask)
    kept, chosen = theta.mask.count, statistics_places(theta)
    step = theta.vector[kept:].astype(np.float64) - before.vector[kept:]
    of_kept = norm(theta.vector[:kept], before.vector[:kept])
    return float(np.hypot(of_kept, norm(step[~chosen]))), norm(step[chosen])


def compared_losses(
    losses: Mapping[int, Doubles],
) -> tuple[Doubles, dict[int, dict[Part, float]]]:
    """The losses of a typical device, and by device its level and how far it is from typical.

    >>> typical, parts = compared_losses({k: np.array([k, k + 1.0, k + 2]) for k in (1, 5, 9)})
    >>> typical.tolist(), parts[9]
    ([5.0, 6.0, 7.0], {('level of losses', ''): 10.0, ('losses', ''): 0.0})
    """
    levels = {device: float(np.median(own)) for device, own in losses.items()}
    middle = np.median(np.stack([own - levels[k] for k, own in losses.items()]), axis=0)
    typical = np.maximum(np.median([*levels.values()]) + middle, 0)
    parts = {
        k: {LEVEL: levels[k], LOSSES: float(np.linalg.norm(own - levels[k] - middle))}
        for k, own in losses.items()
    }
    return typical, parts
