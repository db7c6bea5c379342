"""What the server and a device say to each other: plain records that may cross a network."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny.federation import verbs
from fedtiny.privacy.mechanism import Mechanism
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

Verb = verbs.Verb
Program = verbs.Program
train = verbs.Train
prune_and_grow = verbs.PruneAndGrow
congruent_swap = verbs.CongruentSwap
top_gradients = verbs.TopGradients
shared_gradients = verbs.SharedGradients
drop_scores = verbs.DropScores
sensitivity = verbs.Sensitivity
bn_statistics = verbs.BnStatistics
losses = verbs.Losses
evaluate = verbs.Evaluate


Arrays = Mapping[str, NDArray[Any]]
POOL_COUNTS = "pool.counts"
POOL_RANKS = "pool.ranks"
POOL = (POOL_COUNTS, POOL_RANKS)
"""The arrays of a request that are no batch-norm statistics, if it carries a pool."""
HOPELESS_LOSS = 1e38
"""What a device sends in place of a candidate's loss that is not finite: no reply may hold such."""


@dataclass(frozen=True)
class Request:
    """What the server asks of a device; a reply names the round and the `id` of what it answers."""

    action: str
    method: str
    round: int
    program: verbs.Program
    theta: Theta
    arrays: Arrays = field(default_factory=dict)
    id: int = 0
    mechanism: Mechanism | None = None
    """How the replies become one under differential privacy; it never leaves the server."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "program", tuple(map(verbs.typed, self.program)))

    def identified(self, seed: int) -> "Request":
        """The request with an id that follows from all that it asks, so it stays when resumed.

        Requests of one id ask the same of the same model, and an honest device answers them alike.
        """
        told = [seed, self.action, self.method, self.round, self.theta.version]
        verbs = [[verb.name, dict(verb.options)] for verb in self.program]
        digest = hashlib.blake2b(json.dumps([told, verbs], default=str).encode(), digest_size=8)
        for name, array in self.arrays.items():
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return replace(self, id=int.from_bytes(digest.digest(), "little"))

    @property
    def candidates(self) -> int:
        """Number of candidates of the pool that the request carries."""
        return len(self.arrays[POOL_COUNTS])


@dataclass(frozen=True)
class Reply:
    """What a device answers; `samples` is the number its figures stand for.

    A reply's theta may have a mask of its own. `gradients` are sparse, by layer;
    `arrays` are dense (batch-norm statistics, losses); `metrics` are single numbers.
    """

    device: int
    samples: int
    theta: Theta | None = None
    gradients: Mapping[str, SparseVector] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    round: int = 0
    request: int = 0
    """The id of the request that it answers."""


def pool_arrays(
    counts: NDArray[np.int32],
    statistics: Arrays | None = None,
    ranks: NDArray[np.int32] | None = None,
) -> Arrays:
    """The arrays that turn a theta into a candidate pool, with its batch-norm statistics."""
    order = {} if ranks is None else {POOL_RANKS: ranks}
    return {POOL_COUNTS: counts, **order, **(statistics or {})}
