"""Every random draw of a run, keyed so that no draw depends on what a process did before."""

import zlib

import numpy as np

SERVER = 2**31 - 1  # stands for the server where a draw is keyed by a device
BEFORE_ROUNDS = 2**31 - 1  # stands for the time before the first round


def generator(
    seed: int, purpose: str, *, round: int = BEFORE_ROUNDS, device: int = SERVER
) -> np.random.Generator:
    """A generator for one purpose of one device in one round.

    >>> first = generator(0, "permutation", round=3, device=1).integers(1000)
    >>> bool(first == generator(0, "permutation", round=3, device=1).integers(1000))
    True
    """
    key = (seed, round, device, zlib.crc32(purpose.encode()))
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))
