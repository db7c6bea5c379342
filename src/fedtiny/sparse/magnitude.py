"""Order by magnitude, the same everywhere: larger first, ties to the lower position."""

import numpy as np
from numpy.typing import NDArray


def largest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Sorted positions of the `count` values of largest magnitude.

    >>> largest(np.array([1.0, -3.0, 3.0, 2.0]), 2)
    array([1, 2])
    >>> largest(np.array([1.0, 1.0, 1.0]), 2)
    array([0, 1])
    """
    magnitudes = _magnitudes(values)
    if not 0 < count < len(values):
        return np.arange(len(values) if count > 0 else 0)
    cut = np.partition(magnitudes, len(values) - count)[len(values) - count]
    above = np.flatnonzero(magnitudes > cut)
    ties = np.flatnonzero(magnitudes == cut)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def smallest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Sorted positions of the `count` values of smallest magnitude, ties to the lower position.

    >>> smallest(np.array([1.0, -3.0, 1.0, 1.0]), 2)
    array([0, 2])
    """
    magnitudes = _magnitudes(values)
    if not 0 < count < len(values):
        return np.arange(len(values) if count > 0 else 0)
    cut = np.partition(magnitudes, count - 1)[count - 1]
    below = np.flatnonzero(magnitudes < cut)
    ties = np.flatnonzero(magnitudes == cut)[: count - len(below)]
    return np.sort(np.concatenate([below, ties]))


def _magnitudes(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Absolute values; what is no number ranks as the largest."""
    magnitudes = np.abs(values)
    return np.where(np.isnan(magnitudes), np.inf, magnitudes)
