"""Devices shared out over the ranks of a run; every rank has the same server.

What devices reply is gathered, so every rank folds the same replies in device order and comes to
the same bits. What the server computes with PyTorch counts as rank 0 has computed it.
"""

import heapq
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from fedtiny.devices.executors import Executor
from fedtiny.devices.ranks import Ranks
from fedtiny.devices.workers import Task, outcome_of, reply_in
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply
from fedtiny.federation.public import LayerArrays, PublicSet
from fedtiny.graph.ir import Graph
from fedtiny.sparse.densities import Counts
from fedtiny.sparse.flow import LayerFlow
from fedtiny.sparse.theta import Theta

WINDOW = 8  # tasks a rank that are open at a time at least
HELD = 1 << 30  # bytes that gathered replies may take; as many tasks more are open at a time


class DistributedExecutor:
    """Gives this rank's share of the tasks to its own executor, and gathers all replies.

    The shares depend on the tasks alone. The outcome of a task does not depend on who does it, and
    replies come in the order of the tasks, so neither does the outcome of a run.
    """

    def __init__(self, own: Executor, ranks: Ranks) -> None:
        self.own = own
        self.ranks = ranks

    def answers(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        held = HELD // max(1, tasks[0].request.theta.vector.nbytes) if tasks else 0
        window = max(WINDOW * self.ranks.size, held)
        for start in range(0, len(tasks), window):
            yield from self._shared_out(tasks[start : start + window])

    def _shared_out(self, tasks: Sequence[Task]) -> Iterator[Reply | FedTinyError]:
        positions = shares([len(task.shard) for task in tasks], self.ranks.size)
        own = [tasks[position] for position in positions[self.ranks.rank]]
        replies = zip(own, self.own.answers(own), strict=True)
        outcomes = [outcome_of(reply, task.request) for task, reply in replies]
        gathered = self.ranks.exchange(packed([_standing(tasks[0]), *outcomes]))
        found: dict[int, bytes] = {}
        standing, *_ = unpacked(gathered[0])
        for rank, message in enumerate(gathered):
            theirs, *outcomes = unpacked(message)
            if theirs != standing:
                raise FedTinyError(
                    f"rank {rank} holds another model than rank 0 in round "
                    f"{tasks[0].request.round + 1}; take machines of one kind for one run"
                )
            found |= dict(zip(positions[rank], outcomes, strict=True))
        return (reply_in(found.pop(i), task.request) for i, task in enumerate(tasks))

    def account(self) -> dict[str, Any]:
        """How rank 0 did its share, and how many ranks there were."""
        return {**self.own.account(), "ranks": self.ranks.size}

    def close(self) -> None:
        self.own.close()


def shared_out(executor: Executor, ranks: Ranks) -> Executor:
    """The executor of a run whose tasks are shared out over these ranks."""
    return executor if ranks.size == 1 else DistributedExecutor(executor, ranks)


def _standing(task: Task) -> bytes:
    """What must be the same on every rank."""
    request = task.request
    return f"{request.action} {request.round} {request.theta.version}".encode()


def shares(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """The positions of each rank's tasks: the longest first, each to who has least to do.

    >>> shares([10, 30, 20, 10], 2)
    [[1, 3], [0, 2]]
    """
    found: list[list[int]] = [[] for _ in range(ranks)]
    loads = [(0, rank) for rank in range(ranks)]
    for position in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        load, rank = loads[0]
        found[rank].append(position)
        heapq.heapreplace(loads, (load + sizes[position], rank))
    return [sorted(positions) for positions in found]


def packed(parts: Sequence[bytes]) -> bytes:
    """Some bytes strings as one: each with its length (u64, little-endian) before it.

    >>> unpacked(packed([b"a", b"", b"bc"]))
    [b'a', b'', b'bc']
    """
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def unpacked(message: bytes) -> list[bytes]:
    """The strings that were packed."""
    parts, start = [], 0
    while start < len(message):
        (length,) = struct.unpack_from("<Q", message, start)
        start += 8 + length
        parts.append(message[start - length : start])
    return parts


def of_first(ranks: Ranks, message: Callable[[], bytes]) -> bytes:
    """A message that rank 0 makes for all."""
    return ranks.exchange(message() if ranks.rank == 0 else b"")[0]


def theta_of_first(ranks: Ranks, theta: Theta) -> Theta:
    """Rank 0's values of a theta whose mask all ranks have."""
    if ranks.size == 1:
        return theta
    values = of_first(ranks, lambda: theta.vector.astype("<f4").tobytes())
    return Theta(theta.mask, np.frombuffer(values, dtype="<f4").astype(np.float32))


def scores_of_first(ranks: Ranks, own: LayerArrays) -> LayerArrays:
    """Rank 0's values where every rank has measured the same of every layer."""
    parts = unpacked(of_first(ranks, lambda: packed([v.tobytes() for v in own.values()])))
    return {
        layer: np.frombuffer(part, dtype=values.dtype).reshape(values.shape)
        for (layer, values), part in zip(own.items(), parts, strict=True)
    }


def counts_of_first(ranks: Ranks, own: Counts) -> Counts:
    """Rank 0's layer counts."""
    found = of_first(ranks, lambda: own.astype("<i4").tobytes())
    return np.frombuffer(found, dtype="<i4").astype(np.int32)


def flow_of_first(flow: LayerFlow, ranks: Ranks) -> LayerFlow:
    """The flow through a network as rank 0 measures it; all ranks ask for the same counts."""
    return flow if ranks.size == 1 else flow.with_counts(partial(counts_of_first, ranks))


def measured_by_first(public: PublicSet, ranks: Ranks) -> PublicSet:
    """The public set with rank 0's measurements on every rank."""
    return public if ranks.size == 1 else _PublicSetOfFirst(public, ranks)


class _PublicSetOfFirst:
    """A public set that each rank has, with what rank 0 measures on it."""

    def __init__(self, own: PublicSet, ranks: Ranks) -> None:
        self.own = own
        self.ranks = ranks

    @property
    def graph(self) -> Graph | None:
        return self.own.graph

    def evaluate(self, theta: Theta) -> Mapping[str, float]:
        own = {name: np.array(value) for name, value in self.own.evaluate(theta).items()}
        return {name: float(value) for name, value in scores_of_first(self.ranks, own).items()}

    def gradients(self, theta: Theta) -> LayerArrays:
        return scores_of_first(self.ranks, self.own.gradients(theta))

    def synaptic_flow(self, theta: Theta, *, normalized: bool = False) -> LayerArrays:
        own = self.own.synaptic_flow(theta, normalized=normalized)
        return scores_of_first(self.ranks, own)

    def hessian_gradient(self, theta: Theta) -> LayerArrays:
        return scores_of_first(self.ranks, self.own.hessian_gradient(theta))
