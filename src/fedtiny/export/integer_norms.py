"""Norms and softmax by integers: roots and powers without a float.

With n values q, sums `A` of them and `Q` of their squares, `n * Q - A * A` is n^2 times their
variance and `n * q - A` is n times how far one is from their mean, both exactly. The scale of what
is read drops out of the quotient, but for epsilon.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
UNIT_SHIFT = 16  # of values with deviation 1
POWER_SHIFT = 15  # of powers of e
LARGEST_GROUP = 1 << 22  # values that a norm takes together
LARGEST_VARIANCE = 1 << 61
MAX_FRACTION = 12  # bits of a variance
ROOT_BITS = 60  # of what a root is taken from, or 61


@dataclass(frozen=True, eq=False)
class Norm:
    """A group or layer norm of `count` values together.

    A result is `(unit * multiplier + (shift << 20) + start) >> 32`.
    """

    count: int
    multipliers: Integers
    shifts: Integers
    fraction: int
    """Bits that variances have behind the point; even."""
    epsilon: int
    """In squared steps of what is read, times the square of the count, with that fraction."""
    start: int

    def units(self, read: Integers, axes: tuple[int, ...]) -> Integers:
        """Values with mean 0 and deviation 1 along axes, in 2^-16."""
        sums, squares = (part.sum(axes, keepdims=True) for part in (read, read * read))
        variances = (self.count * squares - sums * sums) << self.fraction
        factors, shifts = reciprocal_roots(variances + self.epsilon)
        away, shifts = self.count * read - sums, shifts - self.fraction // 2
        found: Integers = (away * factors + (np.int64(1) << (shifts - 1))) >> shifts
        return found


@dataclass(frozen=True, eq=False)
class Softmax:
    """A result is `(power * (numerator / sum of powers) + start) >> 24`."""

    powers: NDArray[np.uint16]
    """Of e, to minus each number of steps of what is read, in 2^-15."""
    numerator: int
    start: int

    def scaled(self, read: Integers, axis: int) -> Integers:
        """Results before the shift."""
        powers = self.powers[read.max(axis, keepdims=True) - read].astype(np.int64)
        sums = powers.sum(axis, keepdims=True)
        found: Integers = powers * ((self.numerator + sums // 2) // sums) + self.start
        return found


def fraction_of(count: int) -> int:
    """How many bits of a fraction the variances of so many bytes leave in 60 bits, at most 12.

    >>> fraction_of(2), fraction_of(1 << 17), fraction_of((1 << 17) + 1), fraction_of(1 << 22)
    (12, 12, 10, 2)
    """
    return min(MAX_FRACTION, ROOT_BITS - 14 - 2 * (count - 1).bit_length())


def reciprocal_roots(numbers: Integers) -> tuple[Integers, Integers]:
    """Factors and shifts: `c * factor >> shift` is c by the root of a number below 2^62, in 2^-16.

    >>> factor, shift = reciprocal_roots(np.array([9]))
    >>> (300 * factor >> shift) / 2**16
    array([99.99998474])
    """
    shifts = np.full_like(numbers, ROOT_BITS - UNIT_SHIFT)
    for _ in range(ROOT_BITS // 2):
        small = numbers < 1 << ROOT_BITS
        numbers = np.where(small, numbers << 2, numbers)
        shifts -= small
    roots = np.sqrt(numbers.astype(np.float64)).astype(np.int64)
    roots -= roots * roots > numbers
    roots += (roots + 1) * (roots + 1) <= numbers
    return (1 << ROOT_BITS) // roots, shifts
