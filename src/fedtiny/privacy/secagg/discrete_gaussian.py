"""Whole numbers that are exactly discrete Gaussian, out of a key stream.

After Canonne, Kamath and Steinke (2020), algorithms 1 to 3, for standard deviations that are powers
of two: every chance is then a fraction that 64 bits hold, and no number is ever rounded.
"""

import numpy as np
from numpy.typing import NDArray

from fedtiny.privacy.secagg.ciphers import KeyStream

Numbers = NDArray[np.int64]
Naturals = NDArray[np.uint64]
Bools = NDArray[np.bool_]
MAX_BITS = 24
"""A deviation of 2^24: the square of 2^8 deviations is below 2^64, and none is ever as far out."""
WASTED = 2.2  # numbers that are drawn for one that is kept, on average about 2.08


def draw(count: int, bits: int, seed: bytes) -> Numbers:
    """So many independent numbers with standard deviation 2^bits; a seed serves once.

    >>> draw(6, 3, bytes(32)).tolist()
    [21, -8, -14, -11, 9, -9]
    """
    if not 0 <= bits <= MAX_BITS:
        raise ValueError(f"a deviation of 2^{bits} is not in 2^0 to 2^{MAX_BITS}")
    stream, found, missing = KeyStream(seed), [np.empty(0, np.int64)], count
    while missing > 0:
        found.append(_candidates(int(WASTED * missing) + 16, bits, stream)[:missing])
        missing -= len(found[-1])
    return np.concatenate(found)


def _candidates(count: int, bits: int, stream: KeyStream) -> Numbers:
    """What is kept of so many numbers of a discrete Laplace distribution of scale t = 2^bits.

    A magnitude m is kept with chance exp(-(m - t)^2 / 2 t^2), and of zeros half, since there are
    two of them, +0 and -0.
    """
    within = _uniform(count, bits, stream)
    within = within[_decays(within, bits, stream)]
    magnitudes = (_times(len(within), stream) << np.uint64(bits)) + within
    away = np.maximum(magnitudes, 1 << bits) - np.minimum(magnitudes, 1 << bits)
    square, scale = away * away, np.uint64(2 * bits + 1)
    kept = _times(len(square), stream) >= square >> scale
    kept &= _decays(square & np.uint64((1 << int(scale)) - 1), int(scale), stream)
    negative = stream.take(len(kept)) % 2 == 1
    kept &= ~(negative & (magnitudes == 0))
    signed = magnitudes.astype(np.int64)
    np.negative(signed, out=signed, where=negative)
    found: Numbers = signed[kept]
    return found


def _uniform(count: int, bits: int, stream: KeyStream) -> Naturals:
    """Numbers below 2^bits, each as likely."""
    if bits == 0:
        return np.zeros(count, np.uint64)
    if bits <= 32:
        return stream.take(count).astype(np.uint64) >> np.uint64(32 - bits)
    return stream.take(2 * count).view(np.uint64) >> np.uint64(64 - bits)


def _decays(numerators: Naturals, bits: int, stream: KeyStream) -> Bools:
    """For each x = numerator / 2^bits up to 1, true with chance exp(-x).

    True in a row with chances x, x / 2, x / 3 and so on: how often is even with chance exp(-x).
    """
    result, going, turn = np.zeros(len(numerators), np.bool_), np.arange(len(numerators)), 1
    while len(going):
        on = _uniform(len(going), bits, stream) < numerators[going]
        on[on] = _one_in(turn, int(on.sum()), stream)
        result[going[~on]] = turn % 2 == 1
        going, turn = going[on], turn + 1
    return result


def _times(count: int, stream: KeyStream) -> Naturals:
    """How often in a row something happens whose chance is exp(-1)."""
    result, going = np.zeros(count, np.uint64), np.arange(count)
    while len(going):
        going = going[_decays(np.ones(len(going), np.uint64), 0, stream)]
        result[going] += np.uint64(1)
    return result


def _one_in(number: int, count: int, stream: KeyStream) -> Bools:
    """True with chance 1 / number."""
    if number == 1:
        return np.ones(count, np.bool_)
    limit, drawn = 2**32 - 2**32 % number, stream.take(count).astype(np.uint64)
    while (beyond := np.flatnonzero(drawn >= limit)).size:
        drawn[beyond] = stream.take(beyond.size)
    found: Bools = drawn % np.uint64(number) == 0
    return found
