"""The wire format: how requests and replies become bytes, and bytes become them again.

A message, all numbers little-endian:

    "FTNY", format version u8, kind u8 (1 request, 2 reply), model fingerprint u32,
    the body, CRC-32 of all before it u32.

    request: round u32, id u64, text [action, method, program], theta, arrays
    reply:   device u64, samples u64, round u32 and id u64 of the request that it answers,
             text {metric: number}, theta, gradients, arrays

    theta:     form u8 (0 none and the end, 1 same as before, 2 values, 3 mask and values),
               mask version u64, the version u64 (1) or mask (3) and float32 values (2, 3)
    mask:      the coded positions of each prunable layer (see `indices`)
    gradients: count u16, then layer number u16, coded positions, float32 values; with 0x8000 added
               to the layer number every value is 1, and none follow
    arrays:    count u16, then name, dtype u8, number of dimensions u8, dimensions u32, values
    text:      length u32, JSON;  name: length u8, UTF-8

Decoding trusts nothing: whatever the bytes, it returns a message or raises a `WireError`. On the
way it holds at most, beside the bytes themselves,

- the message's length once more, for values,
- 8 bytes a prunable weight of the model and 40 bytes a weight of its largest layer, for
  positions (the mask of a full layer takes nothing),
- 128 bytes a byte of text and names, for the objects made from them: 32 MiB at most.

A reply longer than the largest honest one (`federation/reply_spec.py`) is refused unread.
"""

import json
import math
import zlib
from typing import Any

from fedtiny.errors import WireError
from fedtiny.federation.messages import Reply, Request
from fedtiny.federation.verbs import Program, Verb, typed
from fedtiny.federation.wire import tensors
from fedtiny.federation.wire.indices import Reader, Writer, checked_name, decoded, write_numbers
from fedtiny.federation.wire.tensors import NOTHING_KNOWN as NOTHING_KNOWN
from fedtiny.federation.wire.tensors import Known as Known
from fedtiny.federation.wire.tensors import MissingVersion as MissingVersion
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

MAGIC = int.from_bytes(b"FTNY", "little")
FORMAT_VERSION = 3  # 1 had other names of verbs and options, 2 no ids of requests
REQUEST, REPLY = 1, 2
_KINDS = {REQUEST: "request", REPLY: "reply"}
_HEAD = "<IBBI"
_CHECKSUM_BYTES = 4
MAX_TEXT_BYTES = 1 << 18


def encode_request(request: Request, known: Known) -> bytes:
    """A request for a device that holds what is known."""
    return _checksummed(_written_request(Writer(), request, known))


def request_size(request: Request, known: Known) -> int:
    """Number of bytes of the encoded request, which is not built for it."""
    return _written_request(Writer(counting=True), request, known).size + _CHECKSUM_BYTES


def decode_request(
    data: bytes, param_spec: ParamSpec, mask: Mask | None = None, theta: Theta | None = None
) -> Request:
    """The request, for a device that remembers this mask and this theta."""
    reader = _opened(data, REQUEST, param_spec)
    number, id = reader.numbers("<IQ", "the round")
    action, method, program = _read_order(reader)
    found = tensors.read_theta(reader, param_spec, mask, theta)
    if found is None:
        raise WireError("a request needs a theta")
    arrays = tensors.read_arrays(reader)
    reader.finish()
    return Request(action, method, number, program, found, arrays, id)


def encode_reply(reply: Reply, mask: Mask) -> bytes:
    """A reply to a request under this mask."""
    return _checksummed(_written_reply(Writer(), reply, mask))


def reply_size(reply: Reply, mask: Mask) -> int:
    """Number of bytes of the encoded reply, which is not built for it."""
    return _written_reply(Writer(counting=True), reply, mask).size + _CHECKSUM_BYTES


def decode_reply(data: bytes, param_spec: ParamSpec, mask: Mask) -> Reply:
    """The reply to a request under this mask."""
    reader = _opened(data, REPLY, param_spec)
    device, samples, number, request = reader.numbers("<QQIQ", "the device")
    metrics = _read_json(reader, float)  # they may be infinite or not a number
    if not isinstance(metrics, dict) or not all(type(v) is float for v in metrics.values()):
        raise WireError("metrics must be numbers by name")
    metrics = {checked_name(name): value for name, value in metrics.items()}
    theta = tensors.read_theta(reader, param_spec, mask, None)
    gradients = tensors.read_gradients(reader, param_spec)
    arrays = tensors.read_arrays(reader)
    reader.finish()
    return Reply(device, samples, theta, gradients, arrays, metrics, number, request)


def _written_request(out: Writer, request: Request, known: Known) -> Writer:
    _write_head(out, REQUEST, request.theta.param_spec)
    write_numbers(out, "<IQ", request.round, request.id)
    verbs = [[checked_name(verb.name), dict(verb.options)] for verb in request.program]
    _write_json(out, [checked_name(request.action), checked_name(request.method), verbs])
    tensors.write_theta(out, request.theta, known)
    tensors.write_arrays(out, request.arrays)
    return out


def _written_reply(out: Writer, reply: Reply, mask: Mask) -> Writer:
    _write_head(out, REPLY, mask.param_spec)
    write_numbers(out, "<QQIQ", reply.device, reply.samples, reply.round, reply.request)
    metrics = {checked_name(name): float(value) for name, value in reply.metrics.items()}
    _write_json(out, metrics, allow_nan=True)
    tensors.write_theta(out, reply.theta, Known(mask=mask.version))
    tensors.write_gradients(out, reply.gradients, mask.param_spec)
    tensors.write_arrays(out, reply.arrays)
    return out


def _write_head(out: Writer, kind: int, param_spec: ParamSpec) -> None:
    """Say what follows and for which model."""
    write_numbers(out, _HEAD, MAGIC, FORMAT_VERSION, kind, param_spec.fingerprint)


def _checksummed(message: Writer) -> bytes:
    """The message with its checksum."""
    checksum = 0
    for part in message.parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join([*message.parts, checksum.to_bytes(_CHECKSUM_BYTES, "little")])


def _opened(data: bytes, kind: int, param_spec: ParamSpec) -> Reader:
    """A reader at the start of the body of a message of this kind for this model."""
    content, checksum = memoryview(data)[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    reader = Reader(content)
    magic, version, found, fingerprint = reader.numbers(_HEAD, "its head")
    if magic != MAGIC:
        raise WireError("these bytes are not a fedtiny message")
    if version != FORMAT_VERSION:
        raise WireError(
            f"the message has format {version}; this fedtiny speaks {FORMAT_VERSION}: install the "
            "same fedtiny on both sides"
        )
    if zlib.crc32(content) != int.from_bytes(checksum, "little"):
        raise WireError("the message was damaged on its way: its checksum does not fit")
    if found != kind:
        raise WireError(f"expected a {_KINDS[kind]}, got {_KINDS.get(found, f'kind {found}')}")
    if fingerprint != param_spec.fingerprint:
        raise WireError(
            f"the message is for model {fingerprint:08x}, not {param_spec.fingerprint:08x}"
        )
    return reader


def _read_order(reader: Reader) -> tuple[str, str, Program]:
    """Action, method and program of a request."""
    match _read_json(reader, _finite):
        case [action, method, list() as verbs]:
            return checked_name(action), checked_name(method), tuple(map(_verb, verbs))
    raise WireError("a request needs an action, a method and a program")


def _verb(value: object) -> Verb:
    match value:
        case [name, dict() as options]:
            try:
                return typed(Verb(checked_name(name), options))
            except ValueError as error:
                raise WireError(str(error)) from error
    raise WireError("a verb of a program needs a name and options")


def _write_json(out: Writer, value: object, allow_nan: bool = False) -> None:
    try:
        text = json.dumps(value, allow_nan=allow_nan, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise WireError(f"a message carries plain finite JSON only: {error}") from error
    if len(text) > MAX_TEXT_BYTES:
        raise WireError(f"{len(text)} bytes of JSON are more than the {MAX_TEXT_BYTES} allowed")
    write_numbers(out, "<I", len(text))
    out.raw(text)


def _read_json(reader: Reader, number: Any) -> Any:
    (length,) = reader.numbers("<I", "its text")
    if length > MAX_TEXT_BYTES:
        raise WireError(f"the message claims {length} bytes of text; {MAX_TEXT_BYTES} are allowed")
    text = decoded(reader.take(length, "its text"))
    try:
        return json.loads(text, parse_float=number, parse_constant=number, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the text of the message is not plain JSON: {error}") from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise WireError(f"options must be finite numbers, not {text[:30]}")
    return value


def _integer(text: str) -> int:
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise WireError(f"the whole number {text[:30]} is too large")
    return value
