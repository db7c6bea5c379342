"""The wire between the server and one simulated device, where bytes are counted."""

from typing import Protocol

from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.wire import (
    NOTHING_KNOWN,
    Known,
    MissingVersion,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    reply_size,
    request_size,
)
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

    def up(self, reply: Reply, mask: Mask) -> tuple[Reply, int]:
        """The reply as the server receives it."""


class CountingLink:
    """Hands messages over as they are and counts what their bytes would be."""

    def __init__(self) -> None:
        self.known = NOTHING_KNOWN

    def down(self, request: Request) -> tuple[Request, int]:
        size = request_size(request, self.known)
        self.known = _held(request.theta)
        return request, size

    def up(self, reply: Reply, mask: Mask) -> tuple[Reply, int]:
        return reply, reply_size(reply, mask)


class EncodingLink:
    """Really encodes every message and decodes it at the other end."""

    def __init__(self) -> None:
        self.known = NOTHING_KNOWN
        self.held: Theta | None = None

    def down(self, request: Request) -> tuple[Request, int]:
        data = encode_request(request, self.known)
        size = len(data)
        try:
            received = self._decode(data, request)
        except MissingVersion:
            data = encode_request(request, NOTHING_KNOWN)
            size += len(data)
            received = self._decode(data, request)
        self.held, self.known = received.theta, _held(received.theta)
        return received, size

    def _decode(self, data: bytes, request: Request) -> Request:
        mask = self.held.mask if self.held else None
        return decode_request(data, request.theta.anatomy, mask, self.held)

    def up(self, reply: Reply, mask: Mask) -> tuple[Reply, int]:
        data = encode_reply(reply, mask)
        return decode_reply(data, mask.anatomy, mask), len(data)


def _held(theta: Theta) -> Known:
    return Known(theta.mask.version, theta.version)
