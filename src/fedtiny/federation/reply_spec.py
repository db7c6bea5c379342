"""What an honest reply to a request holds, and how many bytes it has at most."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.wire import reply_size
from fedtiny.federation.wire.indices import max_coded_size
from fedtiny.federation.wire.plain import MAX_TEXT_BYTES
from fedtiny.models.param_spec import Shape

VALUE_BYTES = 4
LONGEST_NUMBER = -2.2250738585072014e-308  # a metric travels as text; this one has the most digits


@dataclass
class ReplySpec:
    """The parts of an honest reply, as the verbs of a program give them.

    A program with a third party's own verb is `open_ended`: anything may come beside what the
    known verbs give.
    """

    theta: bool = False
    own_mask: bool = False
    gradients: dict[str, int] = field(default_factory=dict)
    """Most entries by layer."""
    arrays: dict[str, Shape] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)
    open_ended: bool = False


def expected(request: Request) -> ReplySpec:
    """What an honest device answers to a request."""
    found = ReplySpec()
    for verb in request.program:
        verb.expect(found, request)
    return found


def reply_limit(request: Request, parts: ReplySpec) -> int:
    """Number of bytes of the largest honest reply; one with any more need not be looked at."""
    mask, sizes = request.theta.mask, request.theta.param_spec.sizes
    arrays = {name: np.zeros(shape, np.float32) for name, shape in parts.arrays.items()}
    metrics = dict.fromkeys(parts.metrics, LONGEST_NUMBER)
    framework = Reply(0, 0, request.theta if parts.theta else None, {}, arrays, metrics)
    gradients = sum(
        2 + max_coded_size(count, sizes[layer]) + VALUE_BYTES * count
        for layer, count in parts.gradients.items()
    )
    positions = sum(max_coded_size(mask.kept(layer), sizes[layer]) for layer in mask)
    return (
        reply_size(framework, mask)
        + gradients
        + (positions if parts.own_mask else 0)
        + (_max_of_a_third_party(request) if parts.open_ended else 0)
    )


def _max_of_a_third_party(request: Request) -> int:
    """A dense model and as many values again, their positions, and a text."""
    param_spec = request.theta.param_spec
    values = param_spec.prunable_count + param_spec.dense_count
    positions = sum(max_coded_size(size, size) for size in param_spec.sizes.values())
    return 2 * VALUE_BYTES * values + 2 * positions + MAX_TEXT_BYTES
