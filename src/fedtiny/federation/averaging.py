"""The final model as an average over rounds: exponential (EMA) or plain (SWA).

Under a mask that changes, a dropped weight leaves the average, and one that is grown enters it with
its value; after the last change it is the plain average of what each weight was. Batch-norm
statistics are averaged like every value; at the end devices measure those of the averaged model,
unless batch norm was frozen: then the statistics that it was trained with stay, or replies are
private: then those averaged do.
"""

from typing import Any

import numpy as np

from fedtiny.config import Config
from fedtiny.federation import bn_statistics
from fedtiny.federation.messages import pool_arrays
from fedtiny.federation.server import FINAL, Server
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length

AVERAGE, COUNT = "average over rounds", "averaged rounds"
MEASURED = "average's statistics measured"


def first_round(config: Config) -> int:
    """The first round whose model is averaged."""
    start = config.server.average_start
    return (config.rounds or 0) * 3 // 4 if start is None else start


def update(server: Server, before: Mask) -> None:
    """Take this round's model into the average, which is under the mask of the round before."""
    config = server.config.server
    if config.average == "none" or server.round < first_round(server.config):
        return
    theta, count = server.theta, server.memory.get(COUNT, 0)
    average = _carried(Theta(before, server.arrays[AVERAGE]), theta) if count else theta
    share = 1 - config.average_decay if config.average == "ema" else 1 / (count + 1)
    moved = average.vector + share * (theta.vector.astype(np.float64) - average.vector)
    server.arrays[AVERAGE] = moved.astype(np.float32)
    server.memory[COUNT] = count + 1


def _carried(average: Theta, theta: Theta) -> Theta:
    """The average under a model's mask; a weight that is new has the model's value."""
    if average.mask == theta.mask:
        return average
    ones = np.ones(length(average.mask), np.float32)
    held = Theta(average.mask, ones).remasked(theta.mask).vector > 0
    values = average.remasked(theta.mask).vector
    return Theta(theta.mask, np.where(held, values, theta.vector))


def finish(server: Server) -> None:
    """After the last round: the average becomes the final model, with statistics of its own.

    If too few devices answer, it keeps the average of the statistics.
    """
    if AVERAGE not in server.arrays:
        return
    final = Theta(server.theta.mask, server.arrays[AVERAGE])
    server.memory[MEASURED] = False
    measures = server.config.train.freeze_bn == 1 and not server.config.privacy.differential
    if final.param_spec.norms and measures:
        how = bn_statistics.measuring(server.config.selection)
        counts = np.array([list(final.mask.counts.values())], dtype=np.int32)
        outcome = server.ask("average", (how,), theta=final, arrays=pool_arrays(counts))
        if server.enough(outcome):
            found = bn_statistics.from_means(outcome.arrays, how)
            final = final.with_dense({name: rows[0] for name, rows in found.items()})
            server.memory[MEASURED] = True
    server.arrays[FINAL] = final.vector


def record(server: Server) -> dict[str, Any]:
    """What a reader of the run should know of its average, if the final model is one."""
    if FINAL not in server.arrays:
        return {}
    kind, rounds = server.config.server.average, server.memory[COUNT]
    statistics = "measured" if server.memory[MEASURED] else "averaged"
    return {"average": {"kind": kind, "rounds": rounds, "batch_norm": statistics}}
