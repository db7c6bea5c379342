"""The wire format: how requests and replies become bytes, and bytes become them again.

A message, all numbers little-endian:

    "FTNY", format version u8, kind u8 (1 request, 2 reply), model fingerprint u32,
    the body, CRC-32 of all before it u32.

    request: round u32, text [action, method, program], theta, arrays
    reply:   device u64, samples u64, text {metric: number}, theta, gradients, arrays

    theta:     form u8 (0 none and the end, 1 same as before, 2 values, 3 mask and values),
               mask version u64, the version u64 (1) or mask (3) and float32 values (2, 3)
    mask:      the coded positions of each prunable layer (see `indices`)
    gradients: count u16, then layer number u16, coded positions, float32 values
    arrays:    count u16, then name, dtype u8, number of dimensions u8, dimensions u32, values
    text:      length u32, JSON;  name: length u8, UTF-8
"""

from fedtiny.federation.wire.codec import (
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
    reply_size,
    request_size,
)
from fedtiny.federation.wire.theta import NOTHING_KNOWN, Known, MissingVersion

__all__ = [
    "NOTHING_KNOWN",
    "Known",
    "MissingVersion",
    "decode_reply",
    "decode_request",
    "encode_reply",
    "encode_request",
    "reply_size",
    "request_size",
]
