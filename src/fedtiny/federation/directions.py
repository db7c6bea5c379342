"""Whether the updates of devices point the same way."""

from collections.abc import Iterable, Iterator, Mapping
from math import fsum, sqrt

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.messages import Reply
from fedtiny.federation.norms import product, step_norms
from fedtiny.sparse.mean import in_chunks
from fedtiny.sparse.theta import Theta, statistics_places

Floats = NDArray[np.float32]
LENGTHS = (1e-30, 1e37)  # of updates that have a direction in float32
NOTHING = 1e-6  # the square of a sum of directions that cancel


def cosines(replies: Iterable[Reply], sent: Theta, norms: Mapping[int, float]) -> dict[int, float]:
    """By device, the cosine between its update and the mean direction of the others' updates.

    In that mean every device counts the same, whatever its samples and however long its update, so
    one device cannot turn it. It is taken over the weights that were sent, without batch-norm
    statistics, and over the devices whose `norms` of updates are given. `replies` are gone through
    twice. Who left its weights as they were has no direction.
    """
    total, along = np.zeros_like(sent.vector), dict[int, float]()
    for _, own, length in _updates(replies, sent, norms):
        _add(total, own, sent.vector, length)
    total[sent.mask.count :][statistics_places(sent)] = 0
    square = _product(total, total)
    for device, own, length in _updates(replies, sent, norms):
        along[device] = _product(total, own, sent.vector, length)
    others = {device: square - 2 * own + 1 for device, own in along.items()}
    return {
        device: (own - 1) / sqrt(others[device]) if others[device] > NOTHING else 0.0
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
        if LENGTHS[0] < length < LENGTHS[1]:
            yield reply.device, own.vector, length


def _add(total: Floats, own: Floats, sent: Floats, length: float) -> None:
    """Add a direction, chunk by chunk."""

    def add(chunk: slice) -> None:
        total[chunk] += _direction(own[chunk], sent[chunk], length)

    in_chunks(len(total), add)


def _product(total: Floats, own: Floats, sent: Floats | None = None, length: float = 1.0) -> float:
    """The inner product of the sum of directions and a direction, or of two sums."""
    found: dict[int, float] = {}

    def add(chunk: slice) -> None:
        one = own[chunk] if sent is None else _direction(own[chunk], sent[chunk], length)
        found[chunk.start] = product(total[chunk], one)

    in_chunks(len(total), add)
    return fsum(found.values())


def _direction(own: Floats, sent: Floats, length: float) -> Floats:
    step = np.subtract(own, sent)
    step *= np.float32(1 / length)
    return step
