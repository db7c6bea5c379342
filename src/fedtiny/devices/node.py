"""One device: it runs the program of a request on its own data."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny import methods
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Engine, RngKey, SecondMoment
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import HOPELESS_LOSS, Reply, Request
from fedtiny.sparse.adjust import grow_and_drop
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector


@dataclass
class Work:
    """A program under way, and what it has found so far."""

    engine: Engine
    request: Request
    shard: DeviceData
    rng_key: RngKey
    samples: int
    theta: Theta | None = None
    gradients: dict[str, SparseVector] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def pool(self) -> CandidatePool:
        """The candidates that the request carries."""
        return CandidatePool(self.request.theta, self.request.arrays["pool.counts"])

    def top_gradients(self, counts: Mapping[str, int], epsilon: float) -> dict[str, SparseVector]:
        """The largest gradients of pruned weights, for the device's model as it is now."""
        return self.engine.top_gradients(self.shard, self.rng_key, counts=counts, epsilon=epsilon)


def answer(engine: Engine, request: Request, shard: DeviceData, seed: int) -> Reply:
    """Run a request's program and give the reply."""
    rng_key = RngKey(seed, request.round, shard.device)
    work = Work(engine, request, shard, rng_key, samples=len(shard))
    engine.load(request.theta)
    for verb in request.program:
        _verb(verb.name, request.method)(work, **verb.options)
    return Reply(shard.device, work.samples, work.theta, work.gradients, work.arrays, work.metrics)


def _verb(name: str, method: str) -> Callable[..., None]:
    verbs = VERBS if name in VERBS else methods.find(method).device_verbs
    if name not in verbs:
        raise FedTinyError(f"this device cannot '{name}', which method '{method}' asks for")
    return verbs[name]


def _train(work: Work, *, epochs: int, sum_dense_gradients: bool = False) -> None:
    metrics, gradients = work.engine.train(
        work.shard, work.rng_key, epochs=epochs, sum_dense_gradients=sum_dense_gradients
    )
    work.metrics |= metrics
    _check_finite("gradients", gradients.values(), work.rng_key)
    work.arrays |= gradients
    work.theta = work.engine.theta()
    _check_finite("weights", [work.theta.vector], work.rng_key)
    work.rng_key = replace(work.rng_key, part=work.rng_key.part + 1)


def _check_finite(what: str, arrays: Iterable[NDArray[np.float32]], rng_key: RngKey) -> None:
    """A device that diverged says so, with advice; its reply would be refused without any."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise FedTinyError(
            f"training diverged on device {rng_key.device} in round {rng_key.round}: its {what} "
            "are no longer finite; lower --train.lr"
        )


def _prune_and_grow(work: Work, *, counts: Mapping[str, int], epsilon: float = 0.0) -> None:
    gradients = work.top_gradients(counts, epsilon)
    work.theta, _ = grow_and_drop(work.engine.theta(), gradients, counts)
    work.engine.load(work.theta)


def _top_gradients(work: Work, *, counts: Mapping[str, int], epsilon: float = 0.0) -> None:
    found = work.top_gradients(counts, epsilon)
    _check_finite("gradients", [gradient.values for gradient in found.values()], work.rng_key)
    work.gradients |= found


def _bn_statistics(
    work: Work, *, batch_size: int, passes: int, second_moment: SecondMoment
) -> None:
    work.arrays |= work.engine.bn_statistics(
        work.shard, work.pool(), batch_size=batch_size, passes=passes, second_moment=second_moment
    )
    work.samples = len(work.shard.development)


def _losses(work: Work) -> None:
    statistics = {k: v for k, v in work.request.arrays.items() if k != "pool.counts"}
    found = work.engine.losses(work.shard, work.pool(), statistics)
    work.arrays["losses"] = np.where(np.isfinite(found), found, np.float32(HOPELESS_LOSS))
    work.samples = len(work.shard.development)


def _evaluate(work: Work) -> None:
    work.metrics |= work.engine.evaluate(work.shard)


VERBS: dict[str, Callable[..., None]] = {
    "train": _train,
    "prune_and_grow": _prune_and_grow,
    "top_gradients": _top_gradients,
    "bn_statistics": _bn_statistics,
    "losses": _losses,
    "evaluate": _evaluate,
}
