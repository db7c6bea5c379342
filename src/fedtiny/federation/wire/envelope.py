"""What is the same in every message: the head that names it, and the checksum that ends it."""

import zlib

from fedtiny.errors import WireError
from fedtiny.federation.wire.reader import Reader
from fedtiny.federation.wire.writer import Writer, write_numbers
from fedtiny.models.param_spec import ParamSpec

MAGIC = int.from_bytes(b"FTNY", "little")
FORMAT_VERSION = 2  # 1 had other names of verbs and options
REQUEST, REPLY = 1, 2
_KINDS = {REQUEST: "request", REPLY: "reply"}
_HEAD = "<IBBI"
_CHECKSUM_BYTES = 4


def write_head(out: Writer, kind: int, param_spec: ParamSpec) -> None:
    """Say what follows and for which model."""
    write_numbers(out, _HEAD, MAGIC, FORMAT_VERSION, kind, param_spec.fingerprint)


def checksummed(message: Writer) -> bytes:
    """The message with its checksum."""
    checksum = 0
    for part in message.parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join([*message.parts, checksum.to_bytes(_CHECKSUM_BYTES, "little")])


def checksummed_size(message: Writer) -> int:
    """Number of bytes of the message with its checksum."""
    return message.size + _CHECKSUM_BYTES


def opened(data: bytes, kind: int, param_spec: ParamSpec) -> Reader:
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
    _check_addressee(kind, found, param_spec, fingerprint)
    return reader


def _check_addressee(kind: int, found: int, param_spec: ParamSpec, fingerprint: int) -> None:
    if found != kind:
        raise WireError(f"expected a {_KINDS[kind]}, got {_KINDS.get(found, f'kind {found}')}")
    if fingerprint != param_spec.fingerprint:
        raise WireError(
            f"the message is for model {fingerprint:08x}, not {param_spec.fingerprint:08x}"
        )
