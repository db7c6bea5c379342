"""The wire between the server and one simulated device, where bytes are counted."""

from fedtiny.federation.messages import Reply, Request
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


class Link:
    """Carries a request down and a reply up, and counts their bytes.

    `known` is what the device holds, as far as the server knows: a mask or a theta that it has
    is not sent again. A link that encodes really sends every message as bytes; another hands it
    over as it is.
    """

    def __init__(self, *, encodes: bool) -> None:
        self.encodes = encodes
        self.known = NOTHING_KNOWN
        self.receiver = Receiver()

    def down(self, request: Request) -> tuple[Request, int]:
        """The request as the device receives it, and its bytes."""
        if self.encodes:
            request, size = self._encoded_down(request)
        else:
            size = request_size(request, self.known)
        self.known = Known.of(request.theta)
        return request, size

    def _encoded_down(self, request: Request) -> tuple[Request, int]:
        param_spec = request.theta.param_spec
        data = encode_request(request, self.known)
        try:
            return self.receiver.receive(data, param_spec), len(data)
        except MissingVersion:
            complete = encode_request(request, NOTHING_KNOWN)
            return self.receiver.receive(complete, param_spec), len(data) + len(complete)

    def up(self, reply: Reply, request: Request) -> tuple[Reply | bytes, int]:
        """The reply as the server receives it, and its bytes."""
        mask = request.theta.mask
        if not self.encodes:
            return reply, reply_size(reply, mask)
        data = encode_reply(reply, mask)
        return data, len(data)

    def restore(self, known: Known, theta: Theta) -> None:
        """Go on where a run stopped with the server at this theta.

        A device keeps what it holds while the server is away, as far as it is still of use.
        """
        self.known = known
        self.receiver = Receiver(
            theta.mask if known.mask == theta.mask.version else None,
            theta if known.theta == theta.version else None,
        )
