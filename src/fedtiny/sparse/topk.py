"""Order of weights, the same everywhere: higher first, ties to the lower position."""

import numpy as np
from numpy.typing import NDArray


def highest(scores: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Sorted positions of the `count` highest scores.

    >>> highest(np.array([1.0, -3.0, 3.0, 1.0]), 2)
    array([0, 2])
    """
    if not 0 < count < len(scores):
        return np.arange(len(scores) if count > 0 else 0)
    cut = np.partition(scores, len(scores) - count)[len(scores) - count]
    chosen = scores > cut
    ties = np.flatnonzero(scores == cut)
    chosen[ties[: count - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)


def largest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Sorted positions of the `count` values of largest magnitude.

    >>> largest(np.array([1.0, -3.0, 3.0, 2.0]), 2)
    array([1, 2])
    >>> largest(np.array([1.0, 1.0, 1.0]), 2)
    array([0, 1])
    """
    return highest(_magnitudes(values), count)


def smallest(values: NDArray[np.floating], count: int) -> NDArray[np.intp]:
    """Sorted positions of the `count` values of smallest magnitude, ties to the lower position.

    >>> smallest(np.array([1.0, -3.0, 1.0, 1.0]), 2)
    array([0, 2])
    """
    return highest(-_magnitudes(values), count)


def _magnitudes(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Absolute values; what is no number ranks as the largest."""
    magnitudes = np.abs(values)
    return np.where(np.isnan(magnitudes), np.inf, magnitudes)
