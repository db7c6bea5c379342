"""What an adjustment grows: what each rule asks of devices, and the scores it gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation.server import Server
from fedtiny.federation.transport import Outcome
from fedtiny.federation.verbs import Program, SharedGradients, TopGradients, shared_positions
from fedtiny.randomness import generator
from fedtiny.sparse.mask import Indices
from fedtiny.sparse.positions import random_pruned
from fedtiny.sparse.vector import SparseVector

SHARED_PER_GROWN = 4  # positions that all devices report for each weight that is grown

Numbers = Mapping[str, int]
Scores = Mapping[str, SparseVector]


@dataclass(frozen=True)
class Growth:
    """A rule: what devices measure for so many grown weights a layer, and what follows from it.

    Of the positions that have a score those of largest magnitude are grown.
    """

    program: Callable[[Server, Numbers], Program]
    scores: Callable[[Server, Outcome, Numbers], Scores]


def _settings(server: Server) -> tuple[float, int]:
    """Least epsilon of batch norm while gradients are measured, and the seed of the run."""
    return server.config.pruning.gradient_epsilon, server.config.seed


def _averaged(server: Server, outcome: Outcome, numbers: Numbers) -> Scores:
    return outcome.gradients


def _by_votes(server: Server, outcome: Outcome, numbers: Numbers) -> Scores:
    """Places in the order of votes, the most last; a draw decides between equals."""
    draw = generator(server.config.seed, "equal votes", round=server.round)
    return {layer: _ranked(outcome.gradients[layer], draw) for layer in numbers}


def _ranked(votes: SparseVector, draw: np.random.Generator) -> SparseVector:
    order = np.lexsort((draw.random(len(votes)), votes.values))
    places = np.empty(len(votes), dtype=np.float32)
    places[order] = np.arange(1, len(votes) + 1)
    return SparseVector(votes.size, votes.indices, np.where(votes.values > 0, places, 0))


def _drawn(server: Server, outcome: Outcome, numbers: Numbers) -> Scores:
    draws = {"seed": server.config.seed, "round": server.round}
    positions = random_pruned(server.theta.mask, numbers, **draws, purpose="random growth")
    return _vectors(server, positions, {n: np.ones(len(own)) for n, own in positions.items()})


def _shared_counts(server: Server, numbers: Numbers) -> dict[str, int]:
    mask = server.theta.mask
    pruned = {layer: mask.param_spec.sizes[layer] - mask.kept(layer) for layer in numbers}
    return {layer: min(SHARED_PER_GROWN * a, pruned[layer]) for layer, a in numbers.items()}


def _shared(server: Server, outcome: Outcome, numbers: Numbers) -> Scores:
    counts, seed = _shared_counts(server, numbers), server.config.seed
    positions = shared_positions(server.theta.mask, counts, seed, server.round)
    return _vectors(server, positions, outcome.arrays)


def _vectors(
    server: Server,
    positions: Mapping[str, Indices],
    values: Mapping[str, NDArray[np.floating]],
) -> Scores:
    sizes = server.param_spec.sizes
    return {
        layer: SparseVector(sizes[layer], own, values[layer].astype(np.float32))
        for layer, own in positions.items()
    }


def _asking(**how: bool) -> Callable[[Server, Numbers], Program]:
    return lambda server, numbers: (TopGradients(numbers, _settings(server)[0], **how),)


GROWTH = {
    "gradient": Growth(_asking(), _averaged),
    "fisher": Growth(_asking(fisher=True), _averaged),
    "votes": Growth(_asking(votes=True), _by_votes),
    "random": Growth(lambda server, numbers: (), _drawn),
    "shared": Growth(
        lambda server, numbers: (
            SharedGradients(_shared_counts(server, numbers), *_settings(server)),
        ),
        _shared,
    ),
}
"""By their names in `--pruning.growth`."""
PRIVATE_GROWTH = ("random", "shared")
"""Those for which no device says which positions matter to it."""
