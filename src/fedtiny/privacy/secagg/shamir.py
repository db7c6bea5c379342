"""Shamir's sharing of a secret: so many shares give it back, fewer say nothing of it."""

import secrets
from collections.abc import Mapping, Sequence
from math import prod

PRIME = 2**255 - 19
"""Of the field of secrets and shares; each takes 32 bytes."""
BYTES = 32


def new_secret() -> int:
    """A secret, drawn by the operating system."""
    return secrets.randbelow(PRIME)


def split(secret: int, holders: Sequence[int], threshold: int) -> dict[int, int]:
    """A share for each holder; any `threshold` of them give the secret back.

    >>> shares = split(7, range(5), threshold=3)
    >>> join({holder: shares[holder] for holder in (0, 2, 4)})
    7
    """
    if not 1 <= threshold <= len(holders):
        raise ValueError(f"a threshold of {threshold} does not fit {len(holders)} holders")
    coefficients = [secret, *(new_secret() for _ in range(threshold - 1))]
    return {holder: _value(coefficients, holder + 1) for holder in holders}


def _value(coefficients: Sequence[int], x: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = value * x + coefficient
    return value % PRIME


def join(shares: Mapping[int, int]) -> int:
    """The secret of these shares, as many as its threshold: the polynomial's value at zero."""
    places = [holder + 1 for holder in shares]
    below = [own * prod(x - own for x in places if x != own) for own in places]
    common = prod(below)  # one fraction, so that one inverse is enough
    above = sum(share * (common // own) for share, own in zip(shares.values(), below, strict=True))
    return prod(places) * above * pow(common, -1, PRIME) % PRIME


def to_bytes(number: int) -> bytes:
    """A secret or a share as it travels."""
    return number.to_bytes(BYTES, "little")


def from_bytes(data: bytes) -> int:
    """A secret or a share that came."""
    return int.from_bytes(data, "little")
