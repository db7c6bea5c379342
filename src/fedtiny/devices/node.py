"""One device: it receives a request and runs its program on its own data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtiny import methods
from fedtiny.devices.device_data import DeviceData
from fedtiny.devices.engine import Arrays, Engine, RngKey
from fedtiny.errors import DivergedError, FedTinyError
from fedtiny.federation import verbs
from fedtiny.federation.messages import (
    HOPELESS_LOSS,
    POOL,
    POOL_COUNTS,
    POOL_RANKS,
    Reply,
    Request,
)
from fedtiny.federation.wire import decode_request
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse import congruity
from fedtiny.sparse.adjust import drop_scores, grow_and_drop, smallest_places
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.mask import Indices, Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector


class Receiver:
    """The device's end of a link: it holds the mask and the theta that it was sent last."""

    def __init__(self, mask: Mask | None = None, theta: Theta | None = None) -> None:
        self.mask = mask
        self.theta = theta

    def receive(self, data: bytes, param_spec: ParamSpec) -> Request:
        """The request, or a `MissingVersion` where it builds on what is not held here."""
        request = decode_request(data, param_spec, self.mask, self.theta)
        self.mask, self.theta = request.theta.mask, request.theta
        return request


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
        arrays = self.request.arrays
        return CandidatePool(self.request.theta, arrays[POOL_COUNTS], arrays.get(POOL_RANKS))

    def top_gradients(
        self, counts: Mapping[str, int], epsilon: float, fisher: bool = False
    ) -> dict[str, SparseVector]:
        """The largest gradients of pruned weights, for the device's model as it is now."""
        return self.engine.top_gradients(
            self.shard, self.rng_key, counts=counts, epsilon=epsilon, fisher=fisher
        )

    def gradients_at(
        self, positions: Mapping[str, Indices], epsilon: float = 0.0, fisher: bool = False
    ) -> Arrays:
        """The gradients of these weights, for the device's model as it is now."""
        found = self.engine.gradients_at(
            self.shard, self.rng_key, positions=positions, epsilon=epsilon, fisher=fisher
        )
        _check_finite("gradients", found.values(), self.rng_key)
        return found


def answer(engine: Engine, request: Request, shard: DeviceData, seed: int) -> Reply:
    """Run a request's program and give the reply."""
    rng_key = RngKey(seed, request.round, shard.device)
    work = Work(engine, request, shard, rng_key, samples=len(shard))
    engine.load(request.theta)
    for verb in request.program:
        do(verb, work)
    found = (work.theta, work.gradients, work.arrays, work.metrics)
    return Reply(shard.device, work.samples, *found, request.round, request.id)


@singledispatch
def do(verb: verbs.Verb, work: Work) -> None:
    """What a device does for a verb; one that is not fedtiny's own is looked up in the method."""
    method = work.request.method
    own = methods.find(method).device_verbs
    if verb.name not in own:
        raise FedTinyError(f"this device cannot '{verb.name}', which method '{method}' asks for")
    own[verb.name](work, **verb.options)


@do.register
def _train(verb: verbs.Train, work: Work) -> None:
    metrics, gradients = work.engine.train(
        work.shard,
        work.rng_key,
        epochs=verb.epochs,
        sum_dense_gradients=verb.sum_dense_gradients,
        received=work.request.theta,
        extruded=smallest_places(work.request.theta, verb.extrude) if verb.extrude else None,
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
        raise DivergedError(
            f"training diverged on device {rng_key.device} in round {rng_key.round + 1}: its "
            f"{what} are no longer finite; lower --train.lr"
        )


@do.register
def _prune_and_grow(verb: verbs.PruneAndGrow, work: Work) -> None:
    gradients = work.top_gradients(verb.counts, verb.epsilon)
    work.theta, _ = grow_and_drop(work.engine.theta(), gradients, verb.counts)
    work.engine.load(work.theta)


@do.register
def _congruent_swap(verb: verbs.CongruentSwap, work: Work) -> None:
    theta, request = work.engine.theta(), work.request
    gradients = work.top_gradients(verb.counts, verb.epsilon)
    dropped = congruity.directions_of_dropped(request.arrays, theta.mask) if verb.recent else {}
    positions = {layer: dropped[layer].indices for layer in verb.counts if layer in dropped}
    of_dropped = work.gradients_at(positions, verb.epsilon) if positions else {}
    work.theta = congruity.congruent_swap(
        theta, request.theta, request.arrays, gradients, of_dropped, verb.counts, verb.share
    )
    work.engine.load(work.theta)


@do.register
def _top_gradients(verb: verbs.TopGradients, work: Work) -> None:
    found = work.top_gradients(verb.counts, verb.epsilon, verb.fisher)
    _check_finite("gradients", [gradient.values for gradient in found.values()], work.rng_key)
    work.gradients |= {n: _votes(g) for n, g in found.items()} if verb.votes else found


def _votes(gradient: SparseVector) -> SparseVector:
    """A vote for every weight whose gradient is not zero."""
    indices = gradient.indices[gradient.values != 0]
    return SparseVector(gradient.size, indices, np.ones(len(indices), dtype=np.float32))


@do.register
def _drop_scores(verb: verbs.DropScores, work: Work) -> None:
    theta = work.engine.theta()
    kept = {layer: theta.mask.indices(layer) for layer in verb.counts}
    gradients = work.gradients_at(kept, verb.epsilon)
    scaled = work.gradients_at(kept, verb.epsilon, fisher=True)
    work.arrays |= {
        layer: drop_scores(theta.kept(layer), gradients[layer], scaled[layer]) for layer in kept
    }


@do.register
def _sensitivity(verb: verbs.Sensitivity, work: Work) -> None:
    theta = work.engine.theta()
    gradients = work.gradients_at({layer: theta.mask.indices(layer) for layer in theta.mask})
    products = [np.abs(gradients[layer] * theta.kept(layer)) for layer in theta.mask]
    scored = Theta(theta.mask, np.concatenate([*products, theta.vector[theta.mask.count :]]))
    work.arrays |= {layer: scored.tensor(layer) for layer in theta.mask}


@do.register
def _shared_gradients(verb: verbs.SharedGradients, work: Work) -> None:
    positions = verb.positions(work.request)
    work.arrays |= work.gradients_at(positions, verb.epsilon)


@do.register
def _bn_statistics(verb: verbs.BnStatistics, work: Work) -> None:
    work.arrays |= work.engine.bn_statistics(work.shard, work.pool(), verb)
    work.samples = len(work.shard.development)


@do.register
def _losses(verb: verbs.Losses, work: Work) -> None:
    statistics = {k: v for k, v in work.request.arrays.items() if k not in POOL}
    found = work.engine.losses(work.shard, work.pool(), statistics)
    work.arrays["losses"] = np.where(np.isfinite(found), found, np.float32(HOPELESS_LOSS))
    work.samples = len(work.shard.development)


@do.register
def _evaluate(verb: verbs.Evaluate, work: Work) -> None:
    work.metrics |= work.engine.evaluate(work.shard)
