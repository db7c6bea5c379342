"""Requests and replies as bytes.

Decoding trusts nothing: whatever the bytes, it returns a message or raises a `WireError`. On the
way it holds at most, beside the bytes themselves,

- the message's length once more, for values,
- 8 bytes a prunable weight of the model and 40 bytes a weight of its largest layer, for
  positions (the mask of a full layer takes nothing),
- 128 bytes a byte of text and names, for the objects made from them: 32 MiB at most.

A reply longer than the largest honest one (`federation/reply_spec.py`) is refused unread.
"""

from fedtiny.errors import WireError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.wire import envelope
from fedtiny.federation.wire.arrays import (
    read_arrays,
    read_gradients,
    write_arrays,
    write_gradients,
)
from fedtiny.federation.wire.plain import read_metrics, read_order, write_metrics, write_order
from fedtiny.federation.wire.theta import Known, read_theta, write_no_theta, write_theta
from fedtiny.federation.wire.writer import Writer, write_numbers
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta


def encode_request(request: Request, known: Known) -> bytes:
    """A request for a device that holds what is known."""
    return envelope.checksummed(_written_request(Writer(), request, known))


def request_size(request: Request, known: Known) -> int:
    """Number of bytes of the encoded request, which is not built for it."""
    return envelope.checksummed_size(_written_request(Writer(counting=True), request, known))


def decode_request(
    data: bytes, param_spec: ParamSpec, mask: Mask | None = None, theta: Theta | None = None
) -> Request:
    """The request, for a device that remembers this mask and this theta."""
    reader = envelope.opened(data, envelope.REQUEST, param_spec)
    (number,) = reader.numbers("<I", "the round")
    action, method, program = read_order(reader)
    found = read_theta(reader, param_spec, mask, theta)
    if found is None:
        raise WireError("a request needs a theta")
    arrays = read_arrays(reader)
    reader.finish()
    return Request(action, method, number, program, found, arrays)


def encode_reply(reply: Reply, mask: Mask) -> bytes:
    """A reply to a request under this mask."""
    return envelope.checksummed(_written_reply(Writer(), reply, mask))


def reply_size(reply: Reply, mask: Mask) -> int:
    """Number of bytes of the encoded reply, which is not built for it."""
    return envelope.checksummed_size(_written_reply(Writer(counting=True), reply, mask))


def decode_reply(data: bytes, param_spec: ParamSpec, mask: Mask) -> Reply:
    """The reply to a request under this mask."""
    reader = envelope.opened(data, envelope.REPLY, param_spec)
    device, samples = reader.numbers("<QQ", "the device")
    metrics = read_metrics(reader)
    theta = read_theta(reader, param_spec, mask, None)
    gradients = read_gradients(reader, param_spec)
    arrays = read_arrays(reader)
    reader.finish()
    return Reply(device, samples, theta, gradients, arrays, metrics)


def _written_request(out: Writer, request: Request, known: Known) -> Writer:
    envelope.write_head(out, envelope.REQUEST, request.theta.param_spec)
    write_numbers(out, "<I", request.round)
    write_order(out, request.action, request.method, request.program)
    write_theta(out, request.theta, known)
    write_arrays(out, request.arrays)
    return out


def _written_reply(out: Writer, reply: Reply, mask: Mask) -> Writer:
    envelope.write_head(out, envelope.REPLY, mask.param_spec)
    write_numbers(out, "<QQ", reply.device, reply.samples)
    write_metrics(out, reply.metrics)
    if reply.theta is None:
        write_no_theta(out)
    else:
        write_theta(out, reply.theta, Known(mask=mask.version))
    write_gradients(out, reply.gradients, mask.param_spec)
    write_arrays(out, reply.arrays)
    return out
