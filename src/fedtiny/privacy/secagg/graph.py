"""Who shares masks with whom: all with all, or each with some neighbors."""

import hashlib
from collections.abc import Mapping, Sequence
from math import floor

import numpy as np

Graph = Mapping[int, tuple[int, ...]]
"""By device, its neighbors in order."""
FEWEST = 3  # devices whose sum hides one from another


def degree(devices: int, neighbors: int) -> int:
    """How many neighbors each of so many devices has: an even number, or all others."""
    return devices - 1 if devices <= neighbors + 1 else neighbors - neighbors % 2


def threshold(neighbors: int, share: float) -> int:
    """How many of its neighbors a device needs: more than this share of them.

    >>> [threshold(count, 2 / 3) for count in (2, 4, 9, 40)]
    [2, 3, 7, 27]
    """
    return min(neighbors, floor(neighbors * share + 1e-9) + 1)


def fewest_summed(devices: int, neighbors: int, share: float) -> int:
    """How many devices are in any sum that a server can unmask, whatever it tells each of them.

    Of a device's neighbors as many as are needed tell their shares of its own seed, and so not the
    seeds of the masks that they have in common; these are told by the others and, about as many
    more, by the device itself. All neighbors whose seeds nobody tells are in the sum.

    >>> [fewest_summed(count, 40, 0.66) for count in (3, 10, 20, 1000)]
    [3, 4, 8, 15]
    """
    count = degree(devices, neighbors)
    return 2 * threshold(count, share) - count + 1


def ring(participants: Sequence[int], seed: bytes) -> list[int]:
    """The devices in the order in which a public seed puts them on a ring."""
    key = int.from_bytes(hashlib.sha256(b"neighbors" + seed).digest(), "little")
    drawn = np.random.Generator(np.random.Philox(key=key % 2**128))
    return [participants[place] for place in drawn.permutation(len(participants))]


def draw(participants: Sequence[int], neighbors: int, seed: bytes) -> Graph:
    """The graph that a public seed names: a ring in drawn order, joined with the nearest on it.

    Every device has the same number of neighbors, and so many must go before it falls apart (a
    Harary graph, as Bell et al. take it). Each device draws it by itself: a server names
    participants and request, and has no other say in who are neighbors.

    >>> draw((4, 7, 9), 40, b"seed")
    {4: (7, 9), 7: (4, 9), 9: (4, 7)}
    """
    count = len(participants)
    if count <= neighbors + 1:
        return {own: tuple(d for d in participants if d != own) for own in participants}
    order, reach = ring(participants, seed), neighbors // 2
    steps = [step for step in range(-reach, reach + 1) if step]
    return {
        own: tuple(sorted(order[(place + step) % count] for step in steps))
        for place, own in enumerate(order)
    }
