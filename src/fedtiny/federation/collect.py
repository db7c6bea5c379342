"""From what devices sent to one outcome: the same for every transport."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import Reply
from fedtiny.federation.reduce import reducer_for
from fedtiny.federation.reply_validator import ReplyValidator
from fedtiny.federation.transport import Outcome, Traffic


@dataclass(frozen=True)
class Arrived:
    """What came of a request to a device: its reply, encoded or not, or why there is none."""

    device: int
    max_samples: int
    """The most that the device can honestly stand for."""
    content: Reply | bytes | FedTinyError
    size: int


def collect(
    arrived: Iterable[Arrived],
    validator: ReplyValidator,
    failed: Mapping[int, str],
    traffic: Traffic,
) -> Outcome:
    """Validate what comes, in device order, and average what is honest, one reply at a time.

    `failed` are the devices that nothing came from; `traffic` is what was counted before.
    """
    request, robustness = validator.request, validator.config.robustness
    replies = reducer_for(validator.reducer, robustness, request.theta)
    left_out = dict(failed)
    for one in arrived:
        traffic += Traffic(up=one.size)
        try:
            reply = validator.accepted(one.content, one.size, one.device, one.max_samples)
        except FedTinyError as error:
            left_out[one.device] = str(error)
        else:
            replies.add(reply)
    return replies.outcome(dict(sorted(left_out.items())), traffic)
