"""Whether the updates of devices point the same way."""

from collections.abc import Iterable, Iterator, Mapping
from math import fsum, sqrt

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.messages import Reply
from fedtiny.federation.norms import Doubles, step_norms
from fedtiny.sparse.mean import in_chunks
from fedtiny.sparse.theta import Theta, statistics_places


def cosines(replies: Iterable[Reply], sent: Theta, norms: Mapping[int, float]) -> dict[int, float]:
    """By device, the cosine between its update and the mean direction of the others' updates.

    In that mean every device counts the same, whatever its samples and however long its update, so
    one device cannot turn it. It is taken over the weights that were sent, without batch-norm
    statistics, and over the devices whose `norms` of updates are given. `replies` are gone through
    twice. Who left its weights as they were has no direction.
    """
    total, along = np.zeros(len(sent.vector)), dict[int, float]()
    for _, own, length in _updates(replies, sent, norms):
        _add(total, own, sent.vector, length)
    total[sent.mask.count :][statistics_places(sent)] = 0
    square = float(np.square(total).sum())
    for device, own, length in _updates(replies, sent, norms):
        along[device] = _product(total, own, sent.vector) / length
    return {
        device: (own - 1) / sqrt(max(square - 2 * own + 1, np.finfo(float).tiny))
        for device, own in along.items()
    }


def _updates(
    replies: Iterable[Reply], sent: Theta, norms: Mapping[int, float]
) -> Iterator[tuple[int, NDArray[np.float32], float]]:
    """Devices with their values where weights were sent, and the norms of their updates there."""
    for reply in replies:
        if reply.theta is None or reply.device not in norms:
            continue
        own, length = reply.theta, norms[reply.device]
        if own.mask != sent.mask:
            own = own.remasked(sent.mask)
            length = step_norms(own, sent)[0]
        if length > 0:
            yield reply.device, own.vector, length


def _add(
    total: Doubles, own: NDArray[np.float32], sent: NDArray[np.float32], length: float
) -> None:
    """Add a direction, chunk by chunk."""

    def add(chunk: slice) -> None:
        step = own[chunk].astype(np.float64)
        step -= sent[chunk]
        step /= length
        total[chunk] += step

    in_chunks(len(total), add)


def _product(total: Doubles, own: NDArray[np.float32], sent: NDArray[np.float32]) -> float:
    """The inner product of the sum of directions and an update."""
    found: dict[int, float] = {}

    def add(chunk: slice) -> None:
        step = own[chunk].astype(np.float64)
        step -= sent[chunk]
        step *= total[chunk]
        found[chunk.start] = float(step.sum())  # no BLAS: its threads spin

    in_chunks(len(total), add)
    return fsum(found.values())
