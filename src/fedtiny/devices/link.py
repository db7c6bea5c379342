"""The wire between the server and one simulated device, where bytes are counted."""

from typing import Protocol

from fedtiny.errors import ReplyError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.reply_validator import ReplyValidator
from fedtiny.federation.wire import (
    NOTHING_KNOWN,
    Known,
    MissingVersion,
    decode_request,
    encode_reply,
    encode_request,
    reply_size,
    request_size,
)
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta


class Link(Protocol):
    """Carries a request down and a reply up, each with its number of bytes.

    `known` is what the device holds, as far as the server knows: a mask or a theta that it has
    is not sent again.
    """

    known: Known

    def down(self, request: Request) -> tuple[Request, int]:
        """The request as the device receives it."""

    def up(self, reply: Reply, validator: ReplyValidator) -> tuple[Reply | ReplyError, int]:
        """The reply as the server receives it, or why it cannot be read."""

    def restore(self, known: Known, theta: Theta) -> None:
        """Go on where a run stopped with the server at this theta."""


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


class CountingLink:
    """Hands messages over as they are and counts what their bytes would be."""

    def __init__(self) -> None:
        self.known = NOTHING_KNOWN

    def down(self, request: Request) -> tuple[Request, int]:
        size = request_size(request, self.known)
        self.known = Known.of(request.theta)
        return request, size

    def up(self, reply: Reply, validator: ReplyValidator) -> tuple[Reply | ReplyError, int]:
        size = reply_size(reply, validator.request.theta.mask)
        try:
            validator.check_length(size)
        except ReplyError as refusal:
            return refusal, size
        return reply, size

    def restore(self, known: Known, theta: Theta) -> None:
        self.known = known


class EncodingLink:
    """Really encodes every message and decodes it at the other end."""

    def __init__(self) -> None:
        self.known = NOTHING_KNOWN
        self.receiver = Receiver()

    def down(self, request: Request) -> tuple[Request, int]:
        data = encode_request(request, self.known)
        size = len(data)
        try:
            received = self.receiver.receive(data, request.theta.param_spec)
        except MissingVersion:
            data = encode_request(request, NOTHING_KNOWN)
            size += len(data)
            received = self.receiver.receive(data, request.theta.param_spec)
        self.known = Known.of(received.theta)
        return received, size

    def up(self, reply: Reply, validator: ReplyValidator) -> tuple[Reply | ReplyError, int]:
        return self.received(encode_reply(reply, validator.request.theta.mask), validator)

    def received(self, data: bytes, validator: ReplyValidator) -> tuple[Reply | ReplyError, int]:
        """What the server makes of a device's bytes."""
        try:
            return validator.decoded(data), len(data)
        except ReplyError as refusal:
            return refusal, len(data)

    def restore(self, known: Known, theta: Theta) -> None:
        """A device keeps what it holds while the server is away, as far as it is still of use."""
        self.known = known
        self.receiver = Receiver(
            theta.mask if known.mask == theta.mask.version else None,
            theta if known.theta == theta.version else None,
        )
