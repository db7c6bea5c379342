"""Replies are not trusted: each is held against what was asked before it counts."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from fedtiny.config import Config
from fedtiny.errors import FedTinyError, ReplyError, WireError
from fedtiny.federation import held_replies
from fedtiny.federation.bounds import Bounds
from fedtiny.federation.held_replies import HeldReplies
from fedtiny.federation.messages import HOPELESS_LOSS, Arrays, Reply, Request
from fedtiny.federation.norms import Measured
from fedtiny.federation.private_mean import PrivateMean
from fedtiny.federation.reply_spec import ReplySpec, expected, reply_limit
from fedtiny.federation.transport import (
    HOLDERS_AND_ABSENT,
    OWN_MASKS,
    Outcome,
    Reducer,
    Traffic,
    reducer_for,
)
from fedtiny.federation.verbs import Losses
from fedtiny.federation.wire import decode_reply
from fedtiny.randomness import generator
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import is_position_list

LARGEST = float(np.finfo(np.float32).max)
NEVER_NEGATIVE = ("running_var", "running_square")


@dataclass(frozen=True)
class Arrived:
    """What came of a request to a device: its reply, encoded or not, or why there is none."""

    device: int
    max_samples: int
    """The most that the device can honestly stand for."""
    content: Reply | bytes | FedTinyError
    size: int


class ReplyValidator:
    """Examines the replies to one question; whatever an honest device never sends is refused.

    The reply stays as it is: nothing is mended. What cannot be told from a single reply (values
    that are possible, yet wrong) is left to clipping and to robust means.
    """

    def __init__(
        self,
        request: Request,
        reducer: str,
        config: Config,
        top_weights: Mapping[str, int] | None = None,
    ) -> None:
        self.request = request
        self.reducer = reducer
        self.top_weights = top_weights
        self.config = config
        self.own_mask = reducer in OWN_MASKS
        self._parts: ReplySpec = expected(request)
        self._open = self._parts.open_ended
        self._first: object = None

    @property
    def has_losses(self) -> bool:
        """Whether replies tell the losses of candidates."""
        return any(isinstance(verb, Losses) for verb in self.request.program)

    @cached_property
    def limit(self) -> int:
        """Most bytes of an honest reply."""
        return reply_limit(self.request, self._parts)

    def check_length(self, size: int) -> None:
        """Refuse a reply of more bytes than the largest honest one, before it is looked at."""
        if size > self.limit:
            raise ReplyError(f"it has {size} bytes, and no honest reply has more than {self.limit}")

    def accepted(self, arrived: Arrived) -> Reply:
        """The reply that came from a device, if it counts; the error says why it does not."""
        content = arrived.content
        if isinstance(content, FedTinyError):
            raise content
        self.check_length(arrived.size)
        reply = content if isinstance(content, Reply) else self.decoded(content)
        self.check(reply, arrived.device, arrived.max_samples)
        return reply

    def decoded(self, data: bytes) -> Reply:
        """The reply that these bytes hold; too many of them are not looked at."""
        self.check_length(len(data))
        theta = self.request.theta
        try:
            return decode_reply(data, theta.param_spec, theta.mask)
        except WireError as error:
            raise ReplyError(str(error)) from error

    def check(self, reply: Reply, device: int, max_samples: int) -> None:
        """Refuse a reply that this device, with at most so many samples, cannot honestly send."""
        if reply.device != device:
            raise ReplyError(f"it is signed by device {reply.device}")
        self._check_request(reply)
        most = self.config.robustness.max_samples if self._open else max_samples
        if not 1 <= reply.samples <= most:
            raise ReplyError(f"it claims {reply.samples} samples, and 1 to {most} are possible")
        self._check_theta(reply.theta)
        self._check_gradients(reply)
        self._check_arrays(reply.arrays)
        self._check_metrics(reply.metrics)
        self._check_like_the_first(reply)

    def _check_request(self, reply: Reply) -> None:
        """Refuse what answers another request, as a replay of an earlier reply does."""
        asked = self.request
        if reply.round != asked.round:
            told, meant = reply.round + 1, asked.round + 1
            raise ReplyError(f"it answers round {told}, and this is round {meant}")
        if reply.request != asked.id:
            raise ReplyError(f"it answers another request than this one of round {asked.round + 1}")

    def _check_theta(self, theta: Theta | None) -> None:
        if theta is None:
            if self._parts.theta:
                raise ReplyError("it has no theta, which was asked for")
            return
        if not self._parts.theta and not self._open:
            raise ReplyError("it has a theta, which nobody asked for")
        self._check_mask(theta.mask)
        if not np.isfinite(theta.vector).all():
            raise ReplyError("its theta holds NaN or infinity")
        for name in theta.param_spec.statistics:
            if name.endswith(NEVER_NEGATIVE) and (theta.vector[theta.places[name]] < 0).any():
                raise ReplyError(f"a variance in {name} is negative")

    def _check_mask(self, mask: Mask) -> None:
        asked, parts = self.request.theta.mask, self._parts
        if mask is asked or mask == asked:
            return
        if not self.own_mask or not (parts.own_mask or self._open):
            raise ReplyError("its theta has another mask than it was sent")
        if mask.param_spec.fingerprint != asked.param_spec.fingerprint:
            raise ReplyError("its theta is of another model")
        limit = max(self.config.density, asked.density)
        if mask.density > limit + 1e-9:
            raise ReplyError(f"its mask has density {mask.density:.6g}, above {limit:.6g}")
        if not self._open and mask.counts != asked.counts:
            raise ReplyError("its mask keeps more or fewer weights of a layer than it was sent")
        for layer in mask if not self._open else ():
            grown = ~np.isin(mask.indices(layer), asked.indices(layer), assume_unique=True)
            if np.count_nonzero(grown) > parts.swaps.get(layer, 0):
                raise ReplyError(f"its mask swaps more weights of {layer} than was asked for")

    def _check_gradients(self, reply: Reply) -> None:
        requested, mask = self._parts.gradients, (reply.theta or self.request.theta).mask
        sizes = mask.param_spec.sizes
        _check_names("gradients of", reply.gradients, requested, sizes if self._open else requested)
        for layer, gradient in reply.gradients.items():
            most = requested.get(layer, sizes[layer])
            if gradient.size != sizes[layer] or len(gradient) > most:
                raise ReplyError(f"it has {len(gradient)} gradients of {layer}, not up to {most}")
            if not is_position_list(gradient.indices, gradient.size):
                raise ReplyError(
                    f"a gradient of {layer} is out of range, out of order or there twice"
                )
            if gradient.values.shape != gradient.indices.shape or not _fits(gradient.values):
                raise ReplyError(f"a gradient of {layer} is NaN or infinite")
            if self._parts.votes and layer in requested and (gradient.values != 1).any():
                raise ReplyError(f"it has another vote than 1 for a weight of {layer}")
            kept = np.isin(gradient.indices, mask.indices(layer), assume_unique=True)
            if layer in requested and kept.any():
                raise ReplyError(f"it has the gradient of a kept weight of {layer}")

    def _check_arrays(self, arrays: Arrays) -> None:
        requested = self._parts.arrays
        _check_names("the array", arrays, requested, None if self._open else requested)
        for name, array in ((name, np.asarray(own)) for name, own in arrays.items()):
            if name in requested and (array.shape != requested[name] or array.dtype != np.float32):
                found = f"{array.shape} {array.dtype}"
                raise ReplyError(f"the array {name} is {found}, not {requested[name]} float32")
            if not _fits(array):
                raise ReplyError(f"the array {name} holds NaN, infinity or what is as good as that")
            if name.endswith(NEVER_NEGATIVE) and (array < 0).any():
                raise ReplyError(f"a variance in {name} is negative")
        if "losses" in requested and (arrays["losses"] < 0).any():
            raise ReplyError("a candidate's loss is negative")
        if "losses" in requested and (arrays["losses"] >= HOPELESS_LOSS).all():
            raise ReplyError("no candidate has a finite loss on it; lower --train.lr")

    def _check_metrics(self, metrics: Mapping[str, float]) -> None:
        requested = dict.fromkeys(self._parts.metrics)
        _check_names("the metric", metrics, requested, None if self._open else requested)
        for name, value in metrics.items():
            most = 1.0 if name == "accuracy" else LARGEST
            least = 0.0 if name in requested else -LARGEST
            if not least <= value <= most:
                raise ReplyError(f"its {name} is {value:g}")

    def _check_like_the_first(self, reply: Reply) -> None:
        """Where anything may come, it must at least be the same from every device."""
        if not self._open:
            return
        gradients = {layer: vector.size for layer, vector in reply.gradients.items()}
        shapes = {name: np.shape(array) for name, array in reply.arrays.items()}
        like = (reply.theta is None, gradients, shapes, set(reply.metrics))
        if self._first is not None and like != self._first:
            raise ReplyError("it holds other things, or in other shapes, than those before it")
        self._first = like


def collect(
    arrived: Iterable[Arrived],
    validator: ReplyValidator,
    failed: Mapping[int, str],
    traffic: Traffic,
    samples: int,
) -> Outcome:
    """Validate what comes, in device order, bound what is out of bounds, and average it.

    `failed` are the devices that nothing came from; `traffic` is what was counted before;
    `samples` is what all devices have, those that were not asked too. Under differential privacy
    replies are clipped instead, since bounds by others' replies would tell of these.
    """
    request, replies = validator.request, _reducer(validator)
    bound = 0.0 if request.mechanism else validator.config.robustness.bound
    left_out, measured = dict(failed), {}
    with closing(HeldReplies(request.theta.mask, held_replies.in_memory())) as held:
        for one in arrived:
            traffic += Traffic(up=one.size)
            try:
                reply = validator.accepted(one)
            except FedTinyError as error:
                left_out[one.device] = str(error)
                continue
            samples -= reply.samples
            if not bound:
                replies.add(reply)
                continue
            held.add(reply, one.size)
            measured[reply.device] = Measured.of(reply, request.theta, validator.has_losses)
        bounds = Bounds.among(measured, request.theta, bound)
        bounds.compare_directions(held)
        bounds.learn_ranges(held)
        for reply in held:
            replies.add(bounds.applied(reply), counts=not bounds.leaves_out(reply.device))
    if validator.reducer == HOLDERS_AND_ABSENT and isinstance(replies, Reducer):
        replies.add_absent(request.theta, samples)
    outcome = replies.outcome(dict(sorted(left_out.items())), traffic)
    return replace(outcome, bounded=bounds.named, largest_norms=bounds.largest)


def _reducer(validator: ReplyValidator) -> Reducer | PrivateMean:
    """What the replies to a question are reduced by."""
    request, config = validator.request, validator.config
    if request.mechanism:
        return PrivateMean(request, request.mechanism)
    draw = partial(generator, config.seed, "buckets", round=request.round)
    top_weights = validator.top_weights
    return reducer_for(validator.reducer, config.robustness, request.theta, top_weights, draw)


def _check_names(
    what: str,
    found: Mapping[str, object],
    requested: Mapping[str, object],
    allowed: Mapping[str, object] | None,
) -> None:
    missing = requested.keys() - found.keys()
    if missing:
        raise ReplyError(f"it lacks {what} {min(missing)}, which was asked for")
    unasked = found.keys() - allowed.keys() if allowed is not None else set()
    if unasked:
        raise ReplyError(f"it has {what} {min(unasked)}, which nobody asked for")


def _fits(values: NDArray[np.generic]) -> bool:
    """Whether all values are finite, and stay so as float32."""
    if values.dtype.kind not in "iuf":
        return False
    return values.dtype.kind != "f" or bool((np.abs(values) <= LARGEST).all())
