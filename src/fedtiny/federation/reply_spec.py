"""What an honest reply to a request holds, and how many bytes it has at most."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.wire import MAX_TEXT_BYTES, reply_size
from fedtiny.federation.wire.indices import max_coded_size
from fedtiny.models.param_spec import ParamSpec, Shape
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import VALUE_BYTES

LONGEST_NUMBER = -2.2250738585072014e-308  # a metric travels as text; this one has the most digits


@dataclass
class ReplySpec:
    """The parts of an honest reply, as the verbs of a program give them.

    A program with a third party's own verb is `open_ended`: anything may come beside what the
    known verbs give.
    """

    theta: bool = False
    own_mask: bool = False
    swaps: dict[str, int] = field(default_factory=dict)
    """Most weights by layer that a mask of the device's own has in place of others."""
    gradients: dict[str, int] = field(default_factory=dict)
    """Most entries by layer."""
    votes: bool = False
    """Whether the gradients are positions alone, each with the value 1."""
    arrays: dict[str, Shape] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)
    open_ended: bool = False


def expected(request: Request) -> ReplySpec:
    """What an honest device answers to a request."""
    found = ReplySpec()
    for verb in request.program:
        verb.expect(found, request)
    return found


def unmoved(request: Request, device: int, samples: int) -> Reply:
    """The reply of a device that has learned nothing: no step, and zeros for all else."""
    spec = expected(request)
    arrays = {name: np.zeros(shape, np.float32) for name, shape in spec.arrays.items()}
    theta, metrics = request.theta if spec.theta else None, dict.fromkeys(spec.metrics, 0.0)
    told = (request.round, request.id)
    return Reply(device, samples, theta, {}, arrays, metrics, *told)


def reply_bytes(
    spec: ReplySpec,
    param_spec: ParamSpec,
    counts: Mapping[str, int],
    coded: Callable[[str, int], int],
    metric: float,
) -> int:
    """Number of bytes of a reply with all parts of a spec, to a model that keeps these counts.

    `coded` is the number of bytes of n positions of a layer, `metric` stands for every metric.
    """
    arrays = {name: np.zeros(shape, np.float32) for name, shape in spec.arrays.items()}
    theta = without_weights(param_spec)
    metrics = dict.fromkeys(spec.metrics, metric)
    size = reply_size(Reply(0, 0, theta if spec.theta else None, {}, arrays, metrics), theta.mask)
    if spec.theta:
        size += VALUE_BYTES * sum(counts.values())
    if spec.own_mask:
        size += sum(coded(layer, count) for layer, count in counts.items())
    value = 0 if spec.votes else VALUE_BYTES
    return size + sum(
        2 + coded(layer, count) + value * count for layer, count in spec.gradients.items()
    )


def without_weights(param_spec: ParamSpec) -> Theta:
    """A model that keeps no weight: what its weights would take is added to its messages."""
    mask = Mask(param_spec, {layer: np.empty(0, np.int32) for layer in param_spec.prunable})
    return Theta(mask, np.zeros(param_spec.dense_count, np.float32))


def reply_limit(request: Request, spec: ReplySpec) -> int:
    """Number of bytes of the largest honest reply; one with any more need not be looked at."""
    param_spec, counts = request.theta.param_spec, request.theta.mask.counts
    sizes = param_spec.sizes
    most = reply_bytes(
        spec, param_spec, counts, lambda layer, n: max_coded_size(n, sizes[layer]), LONGEST_NUMBER
    )
    return most + (_max_of_a_third_party(param_spec) if spec.open_ended else 0)


def _max_of_a_third_party(param_spec: ParamSpec) -> int:
    """A dense model and as many values again, their positions, and a text."""
    values = param_spec.prunable_count + param_spec.dense_count
    positions = sum(max_coded_size(size, size) for size in param_spec.sizes.values())
    return 2 * VALUE_BYTES * values + 2 * positions + MAX_TEXT_BYTES
