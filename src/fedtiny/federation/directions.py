"""Whether the updates of devices point the same way."""

from collections.abc import Collection, Iterable
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.messages import Reply
from fedtiny.sparse.theta import Theta, statistics_places


def cosines(replies: Iterable[Reply], sent: Theta, without: Collection[int]) -> dict[int, float]:
    """By device, the cosine between its update and the mean direction of the others' updates.

    In that mean every device counts the same, whatever its samples and however long its update, so
    one device cannot turn it. `replies` are gone through twice. Who left its weights as they were
    has no direction.
    """
    total, along = np.zeros(len(sent.vector)), dict[int, float]()
    for reply in replies:
        if reply.device not in without and (own := direction(reply.theta, sent)) is not None:
            total += own
    square = _product(total, total)
    for reply in replies:
        if reply.device not in without and (own := direction(reply.theta, sent)) is not None:
            along[reply.device] = _product(own, total)
    return {
        device: (own - 1) / sqrt(max(square - 2 * own + 1, np.finfo(float).tiny))
        for device, own in along.items()
    }


def direction(theta: Theta | None, sent: Theta) -> NDArray[np.float64] | None:
    """The update of weights, of length 1, where weights were sent; batch-norm statistics are 0."""
    if theta is None:
        return None
    own = theta if theta.mask == sent.mask else theta.remasked(sent.mask)
    step = own.vector.astype(np.float64) - sent.vector
    step[sent.mask.count :][statistics_places(sent)] = 0
    length = sqrt(_product(step, step))
    return step / length if length > 0 else None


def _product(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float((one * other).sum())  # no BLAS: its threads spin
