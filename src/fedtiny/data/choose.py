"""Choose samples by class: an even subset, or a part held out for testing."""

import numpy as np

from fedtiny.data.array import Array


def balanced_choice(labels: Array, size: int, draw: np.random.Generator) -> Array:
    """Sorted indices of ``size`` samples, as even over the classes as they allow.

    >>> labels = np.array([0, 0, 0, 0, 0, 1, 2, 2])
    >>> chosen = balanced_choice(labels, 5, np.random.default_rng(0))
    >>> np.bincount(labels[chosen]).tolist()
    [2, 1, 2]
    """
    order = draw.permutation(len(labels))
    ranks = _ranks_within_class(labels[order])
    by_rank = np.argsort(ranks, kind="stable")
    return np.sort(order[by_rank[:size]])


def _ranks_within_class(labels: Array) -> Array:
    """How many samples of the same class come before each sample."""
    by_class = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[by_class], return_index=True, return_counts=True)
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[by_class] = np.arange(len(labels)) - np.repeat(starts, counts)
    return ranks


def hold_out(labels: Array, share: float, draw: np.random.Generator) -> tuple[Array, Array]:
    """Sorted indices to train on and to test on, with ``share`` of every class to test on.

    A class of one sample is trained on.

    >>> train, test = hold_out(np.repeat([0, 1], [5, 10]), 0.2, np.random.default_rng(0))
    >>> len(train), len(test)
    (12, 3)
    """
    order = draw.permutation(len(labels))
    ranks = _ranks_within_class(labels[order])
    counts = np.bincount(labels)
    wanted = np.clip(np.rint(counts * share), 1, np.maximum(counts - 1, 0)) * (counts > 1)
    held_out = ranks < wanted[labels[order]]
    return np.sort(order[~held_out]), np.sort(order[held_out])
