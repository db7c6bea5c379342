"""Bytes between the server and one device, from the codec's own size functions.

No message is built at its real size. A message is sized around a model that keeps no weight, and
what its weights take is added: four bytes a value, and the coded positions where the mask travels.
Given the coded positions the outcome is exact; without a mask their expected size is taken.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

import numpy as np

from fedtiny.cost.workload import Swaps, Workload
from fedtiny.federation.messages import (
    Arrays,
    Program,
    Reply,
    Request,
    bn_statistics,
    losses,
    pool_arrays,
    prune_and_grow,
    top_gradients,
    train,
)
from fedtiny.federation.transport import Traffic
from fedtiny.federation.wire import Known, reply_size, request_size
from fedtiny.federation.wire.indices import coded_size
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

VALUE = 4
PAPER_KEPT_WEIGHT = 8  # the paper's bytes for a kept weight: a value and a position
TYPICAL_LOSS = 1.8024139404296875  # a loss travels as text, so its digits matter a little
_RICE_HEAD = 9

Coded = Mapping[str, int]
"""Bytes of the coded positions of each layer."""


def coded_mask(mask: Mask) -> Coded:
    """What the positions of a real mask take."""
    return {
        layer: coded_size(None if mask.is_full(layer) else mask.indices(layer), size)
        for layer, size in mask.param_spec.sizes.items()
    }


def expected_coded(param_spec: ParamSpec, counts: Mapping[str, int]) -> Coded:
    """What the positions of a random mask take on average."""
    return {
        layer: expected_bytes(count, param_spec.sizes[layer]) for layer, count in counts.items()
    }


def expected_bytes(count: int, size: int) -> int:
    """Average bytes of so many random positions of a layer, in the smallest of the forms.

    The gaps between random positions are geometric, so the upper part of a gap in Rice's code
    with k low bits is q^(2^k) / (1 - q^(2^k)) on average, where q is the pruned share.

    >>> expected_bytes(100, 100), expected_bytes(50, 100)
    (1, 14)
    """
    if count == size:
        return 1
    rice = (_expected_rice(count, size, low_bits) for low_bits in range(31))
    return min(1 + ceil(size / 8), *rice)


def _expected_rice(count: int, size: int, low_bits: int) -> int:
    beyond = (1 - count / size) ** (1 << low_bits)
    unary = count * (1 + beyond / (1 - beyond)) if count else 0.0
    return _RICE_HEAD + low_bits * ceil(count / 8) + ceil(min(unary, count + size) / 8)


def training_round(
    work: Workload,
    round: int,
    *,
    new_mask: Coded | None = None,
    reply_positions: Coded | None = None,
) -> Traffic:
    """A round of training; `new_mask` where the device does not hold the mask yet.

    `reply_positions` are those of the gradients (FedTiny) or of the device's own mask (FedDST)
    that an adjusting round sends up; by default those that are expected.
    """
    swaps = work.swaps(round)
    down = _request_bytes(work, "train", round, _program(work, swaps))
    if reply_positions is None:
        reply_positions = _expected_reply_positions(work, swaps)
    return Traffic(
        down=down + VALUE * work.kept + sum((new_mask or {}).values()),
        up=_training_reply(work, swaps, reply_positions),
    )


def selection(work: Workload, bundle: Coded | None = None) -> Traffic:
    """Comparing the candidates, which travel as one nested model (Alg. 1)."""
    if not work.selects:
        return Traffic()
    most = dict(zip(work.network.param_spec.prunable, work.pool.max(axis=0).tolist(), strict=True))
    positions = expected_coded(work.network.param_spec, most) if bundle is None else bundle
    model = VALUE * sum(most.values()) + sum(positions.values())
    if work.config.selection.kind == "vanilla":
        return _losses_question(work, {}, held=False) + Traffic(down=model)
    statistics = _candidate_statistics(work)
    asked = _statistics_question(work) + Traffic(down=model)
    return asked + _losses_question(work, statistics, held=True)


def paper_selection(work: Workload) -> int:
    """The paper's count: every candidate by itself, 8 bytes a kept weight."""
    return PAPER_KEPT_WEIGHT * work.config.pool_size * work.kept if work.selects else 0


def _program(work: Workload, swaps: Swaps) -> Program:
    epochs = work.config.train.local_epochs
    epsilon = work.config.pruning.gradient_epsilon
    if work.habits.adjusts_by == "full_gradients":
        return (train(epochs, sum_dense_gradients=bool(swaps)),)
    if not swaps:
        return (train(epochs),)
    if work.habits.adjusts_by == "prune_and_grow":
        return (train(epochs), prune_and_grow(swaps, epsilon), train(epochs))
    return (train(epochs), top_gradients(swaps, epsilon))


def _training_reply(work: Workload, swaps: Swaps, positions: Coded) -> int:
    values, sizes = VALUE * work.kept, work.network.param_spec.sizes
    reply = Reply(0, work.samples, _without_weights(work.network.param_spec))
    reply = replace(reply, metrics={"loss": TYPICAL_LOSS})
    if not swaps:
        return _reply_bytes(work, reply) + values
    if work.habits.adjusts_by == "full_gradients":
        reply = replace(reply, arrays=_zeros(work.network.param_spec.prunable))
        return _reply_bytes(work, reply) + values
    if work.habits.adjusts_by == "prune_and_grow":
        return _reply_bytes(work, reply) + values + sum(positions.values())
    reply = replace(reply, gradients={layer: _nothing(sizes[layer]) for layer in swaps})
    placeholders = sum(coded_size(_nothing(sizes[layer]).indices, sizes[layer]) for layer in swaps)
    gradients = VALUE * sum(swaps.values()) + sum(positions.values()) - placeholders
    return _reply_bytes(work, reply) + values + gradients


def _expected_reply_positions(work: Workload, swaps: Swaps) -> Coded:
    own_mask = work.habits.adjusts_by == "prune_and_grow"
    return expected_coded(work.network.param_spec, work.counts if own_mask else swaps)


def _statistics_question(work: Workload) -> Traffic:
    settings = work.config.selection
    second_moment = "square" if settings.variance == "pooled" else "var"
    verb = bn_statistics(settings.batch_size, settings.passes, second_moment)
    down = _request_bytes(work, "select", 0, (verb,), pool_arrays(work.pool))
    statistics = _candidate_statistics(work)
    if second_moment == "square":
        statistics = {k.replace("running_var", "running_square"): v for k, v in statistics.items()}
    return Traffic(down, _reply_bytes(work, Reply(0, work.development, arrays=statistics)))


def _losses_question(work: Workload, statistics: Arrays, held: bool) -> Traffic:
    arrays = pool_arrays(work.pool, statistics)
    down = _request_bytes(work, "select", 0, (losses(),), arrays, held)
    found = {"losses": np.zeros(len(work.pool), np.float32)}
    return Traffic(down, _reply_bytes(work, Reply(0, work.development, arrays=found)))


def _candidate_statistics(work: Workload) -> Arrays:
    shapes = work.network.param_spec.statistics
    return _zeros({name: (len(work.pool), *shape) for name, shape in shapes.items()})


def _request_bytes(
    work: Workload,
    action: str,
    round: int,
    program: Program,
    arrays: Arrays | None = None,
    held: bool = False,
) -> int:
    """A request but for its weights; the device holds the mask, and perhaps the theta too."""
    theta = _without_weights(work.network.param_spec)
    request = Request(action, work.config.method, round, program, theta, arrays or {})
    known = Known(theta.mask.version, theta.version if held else None)
    return request_size(request, known)


def _reply_bytes(work: Workload, reply: Reply) -> int:
    return reply_size(reply, _without_weights(work.network.param_spec).mask)


def _without_weights(param_spec: ParamSpec) -> Theta:
    mask = Mask(param_spec, {layer: np.empty(0, np.int32) for layer in param_spec.prunable})
    return Theta(mask, np.zeros(param_spec.dense_count, np.float32))


def _nothing(size: int) -> SparseVector:
    return SparseVector(size, np.empty(0, np.int32), np.empty(0, np.float32))


def _zeros(shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Arrays of zeros, whose memory is never touched."""
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
