"""Bytes that lie take no more memory than the codec states, whatever they claim."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest

import fedtiny.federation.wire as wire
from fedtiny.errors import WireError
from fedtiny.federation.messages import Reply
from fedtiny.federation.wire import MAX_TEXT_BYTES
from fedtiny.federation.wire.indices import BITMAP, FULL, RICE
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask

MIB = 2**20
NO_THETA, NO_GRADIENTS, ARRAY = b"\x00", b"\x00\x00", b"\x01\x00\x01x"


def anatomy_of(*sizes, dense=0):
    prunable = {f"layer{number}": (size,) for number, size in enumerate(sizes)}
    blocks = tuple((name,) for name in prunable)
    return ParamSpec(prunable, {"bias": (dense,)}, blocks, (), "layer0", "layer0")


def message(kind, numbers, text, body, param_spec):
    head = b"FTNY" + struct.pack("<BBI", wire.FORMAT_VERSION, kind, param_spec.fingerprint)
    content = head + numbers + struct.pack("<I", len(text)) + text + body
    return content + zlib.crc32(content).to_bytes(4, "little")


def request_with(param_spec, text=b'["a","m",[]]', body=b""):
    return message(wire.REQUEST, bytes(12), text, body, param_spec)


def reply_with(param_spec, body):
    return message(wire.REPLY, bytes(28), b"{}", body, param_spec)


def peak_memory(decode_it, *arguments):
    tracemalloc.start()
    try:
        decode_it(*arguments)
    except WireError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


SMALL = anatomy_of(4)
HUGE = anatomy_of(2**31 - 1, 2**30, dense=2**30)
MASK_FOLLOWS = b"\x03" + bytes(8)
GRADIENT_FOLLOWS = NO_THETA + b"\x01\x00\x00\x00"


@pytest.mark.parametrize(
    "body",
    [
        MASK_FOLLOWS + bytes([FULL, FULL]),
        MASK_FOLLOWS + bytes([BITMAP]) + bytes(1000),
        MASK_FOLLOWS + bytes([RICE]) + struct.pack("<II", 2**31 - 1, 2**28) + b"\xff" * 1000,
        MASK_FOLLOWS + bytes([RICE + 30]) + struct.pack("<II", 2**31 - 1, 2**28),
        MASK_FOLLOWS + bytes([RICE + 30]) + struct.pack("<II", 2**31 - 1, 1000) + b"\xff" * 1000,
        MASK_FOLLOWS + bytes([RICE + 30]) + struct.pack("<II", 8000, 1000) + b"\xff" * 1000,
        GRADIENT_FOLLOWS + bytes([FULL]),
        GRADIENT_FOLLOWS + bytes([BITMAP]) + bytes(1000),
        NO_THETA + NO_GRADIENTS + ARRAY + b"\x00\x01" + b"\xff" * 4,
        NO_THETA + NO_GRADIENTS + ARRAY + b"\x01\x02\x00\x00\x10\x00\x00\x00\x10\x00",
        NO_THETA + NO_GRADIENTS + b"\xff\xff",
        NO_THETA + b"\xff\xff",
    ],
)
def test_huge_claims_take_no_memory(body):
    mask = Mask.full(HUGE)
    assert peak_memory(wire.decode_reply, reply_with(HUGE, body), HUGE, mask) < MIB / 2
    request = request_with(HUGE, body=body)
    assert peak_memory(wire.decode_request, request, HUGE) < MIB / 2


@pytest.mark.parametrize(
    "layer",
    [
        bytes([BITMAP]) + b"\xff" * (MIB // 8),
        bytes([RICE]) + struct.pack("<II", MIB, MIB // 8) + b"\xff" * (MIB // 8),
        bytes([RICE + 2])
        + struct.pack("<II", MIB, MIB // 8)
        + b"\xff" * (MIB // 8)
        + bytes(MIB // 4),
    ],
    ids=["bitmap", "unary", "planes"],
)
def test_the_stated_bound_holds_for_the_fullest_layers(layer):
    param_spec = anatomy_of(MIB, MIB)
    data = request_with(param_spec, body=MASK_FOLLOWS + 2 * layer)
    bound = len(data) + 8 * param_spec.prunable_count + 40 * MIB
    assert peak_memory(wire.decode_request, data, param_spec) < bound


@pytest.mark.slow
@pytest.mark.parametrize("item", [b"{}", b"[]", b'{"a":{}}', b'{"a":{"a":{"a":0}}}'])
def test_the_stated_bound_holds_for_text(item):
    count = MAX_TEXT_BYTES // (len(item) + 1) - 10
    text = b'["a","m",[["v",{"x":[' + b",".join([item] * count) + b"]}]]]"
    assert peak_memory(wire.decode_request, request_with(SMALL, text), SMALL) < 16 * MIB


@pytest.mark.slow
def test_the_stated_bound_holds_for_names():
    arrays = {f"{number:x}": np.uint8(0) for number in range(2**16 - 1)}
    mask = Mask.full(SMALL)
    data = wire.encode_reply(Reply(0, 0, arrays=arrays), mask)
    assert peak_memory(wire.decode_reply, data, SMALL, mask) < 24 * MIB
