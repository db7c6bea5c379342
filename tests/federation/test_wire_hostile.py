"""Bytes that lie end in one clear sentence: no crash and no other error."""

import random
import struct
import zlib
from time import monotonic

import numpy as np
import pytest

import fedtiny.federation.wire as wire
from fedtiny.errors import WireError
from fedtiny.federation.messages import Reply, Request, Verb
from fedtiny.federation.wire import MAX_TEXT_BYTES, NOTHING_KNOWN
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector


def anatomy_of(*sizes, dense=0):
    prunable = {f"layer{number}": (size,) for number, size in enumerate(sizes)}
    blocks = tuple((name,) for name in prunable)
    return ParamSpec(prunable, {"bias": (dense,)}, blocks, (), "layer0", "layer0")


SMALL = anatomy_of(3, 40, 900, 1, dense=2)
MASK = Mask(
    SMALL, {"layer0": None, "layer1": [0, 5, 39], "layer2": [7, 300, 301, 899], "layer3": []}
)
THETA = Theta(MASK, np.arange(length(MASK), dtype=np.float32))
ARRAYS = {"counts": np.ones((2, 2), np.int32), "loss": np.float64(3)}
VERBS = (Verb("practice", {"epochs": 2, "rates": [0.1, {"x": None}]}),)
REQUEST = wire.encode_request(Request("act", "method", 4, VERBS, THETA, ARRAYS), NOTHING_KNOWN)
GRADIENTS = {
    "layer2": SparseVector(900, np.array([3, 800], np.int32), np.ones(2, np.float32)),
    "layer0": SparseVector(3, np.arange(3, dtype=np.int32), np.ones(3, np.float32)),
}
REPLY = wire.encode_reply(
    Reply(3, 99, THETA, GRADIENTS, ARRAYS, {"loss": 0.5, "bad": float("nan")}), Mask.full(SMALL)
)


def decode(data, param_spec=SMALL):
    if data[5:6] == bytes([wire.REPLY]):
        return wire.decode_reply(data, param_spec, Mask.full(param_spec))
    return wire.decode_request(data, param_spec)


def sealed(content):
    return content + zlib.crc32(content).to_bytes(4, "little")


def head(kind, param_spec=SMALL):
    return b"FTNY" + struct.pack("<BBI", wire.FORMAT_VERSION, kind, param_spec.fingerprint)


def request_with(text=b'["a","m",[]]', body=b"", param_spec=SMALL, claimed=None):
    length = struct.pack("<I", len(text) if claimed is None else claimed)
    return sealed(head(wire.REQUEST, param_spec) + bytes(12) + length + text + body)


def reply_with(text=b"{}", body=b"", param_spec=SMALL):
    length = struct.pack("<I", len(text))
    return sealed(head(wire.REPLY, param_spec) + bytes(28) + length + text + body)


@pytest.mark.parametrize("message", [REQUEST, REPLY], ids=["request", "reply"])
def test_every_truncation_is_refused(message):
    decode(message)
    for end in range(len(message)):
        with pytest.raises(WireError):
            decode(message[:end])
    for end in range(len(message) - 4):
        with pytest.raises(WireError):
            decode(sealed(message[:end]))


@pytest.mark.parametrize("message", [REQUEST, REPLY], ids=["request", "reply"])
def test_every_changed_byte_is_refused(message):
    for place in range(len(message)):
        for change in (0x01, 0x80, 0xFF):
            flipped = bytearray(message)
            flipped[place] ^= change
            with pytest.raises(WireError):
                decode(bytes(flipped))


def mutated(message, rng):
    data = bytearray(message[:-4])
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(10, len(data))
        match rng.randrange(5):
            case 0:
                data[place] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
            case 1:
                data[place : place + 4] = rng.choice([0, 1, 2**31, 2**32 - 1]).to_bytes(4, "little")
            case 2:
                del data[place : place + rng.randint(1, 9)]
            case 3:
                data[place:place] = rng.randbytes(rng.randint(1, 9))
            case _:
                data[place] ^= 1 << rng.randrange(8)
    return sealed(bytes(data))


def outcome(data):
    try:
        return type(decode(data))
    except WireError as error:
        sentence = str(error)
        assert sentence.isprintable()
        assert 10 < len(sentence) < 400
        return WireError


@pytest.mark.parametrize("message", [REQUEST, REPLY], ids=["request", "reply"])
def test_mutations_behind_a_right_checksum(message):
    rng, start = random.Random(5), monotonic()
    outcomes = [outcome(mutated(message, rng)) for _ in range(2_000)]
    assert outcomes.count(WireError) > 500
    assert outcomes.count(type(decode(message))) > 50
    assert monotonic() - start < 60


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (b"", "ends inside its head"),
        (b"PK\x03\x04" + bytes(40), "not a fedtiny message"),
        (b"FTNY\x09" + bytes(40), "format 9; this fedtiny speaks 3"),
        (b"FTNY\x01" + REQUEST[5:], "format 1; this fedtiny speaks 3: install the same"),
        (sealed(head(wire.REPLY)), "expected a request, got reply"),
        (sealed(head(77)), "expected a request, got kind 77"),
        (request_with(param_spec=anatomy_of(4)), "is for model"),
        (REQUEST[:-1] + bytes([REQUEST[-1] ^ 1]), "checksum"),
        (sealed(REQUEST[:-4] + b"x"), "1 bytes follow the end"),
        (request_with(claimed=MAX_TEXT_BYTES + 1), "bytes of text"),
        (request_with(claimed=1000), "ends inside its text"),
        (request_with(b"[" * 200_000), "not plain JSON"),
        (request_with(b'{"a":' * 50_000), "not plain JSON"),
        (request_with(b"\xff\xfe"), "not UTF-8"),
        (request_with(b"{}"), "needs an action"),
        (request_with(b'["a","m",{}]'), "needs an action"),
        (request_with(b'["a",5,[]]'), "a name needs"),
        (request_with(b'["a","m",[["train",{"epoch":1}]]]'), "the verb 'train' takes epochs"),
        (request_with(b'["a","m",[["top_gradients",{"counts":1}]]]'), "takes counts, epsilon"),
        (request_with(b'["a","\\ud800",[]]'), "a name needs"),
        (request_with(b'["a","m",["train"]]'), "a verb"),
        (request_with(b'["a","m",[["train",[]]]]'), "a verb"),
        (request_with(b'["a","m",[["t",{"x":NaN}]]]'), "finite"),
        (request_with(b'["a","m",[["t",{"x":1e999}]]]'), "finite"),
        (request_with(b'["a","m",[["t",{"x":%s}]]]' % (b"9" * 30)), "too large"),
        (request_with(b'["a","m",[["t",{"x":%s}]]]' % (b"9" * 9000)), "not plain JSON"),
        (request_with(body=b"\x00"), "a request needs a theta"),
        (request_with(body=b"\x04"), "theta has the unknown form"),
        (request_with(body=b"\x03" + bytes(8) + bytes(4)), "is not the 0000000000000000"),
    ],
)
def test_each_lie_of_a_request_is_named(message, sentence):
    with pytest.raises(WireError, match=sentence):
        wire.decode_request(message, SMALL)


NO_THETA, NOTHING = b"\x00", b"\x00\x00"
ARRAY = b"\x01\x00\x01x"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (reply_with(b"[]"), "metrics must be numbers"),
        (reply_with(b'{"a":1}'), "metrics must be numbers"),
        (reply_with(b'{"a":"1.0"}'), "metrics must be numbers"),
        (reply_with(b'{"":1.0}'), "a name needs"),
        (reply_with(body=b"\x01" + bytes(16)), "needs theta"),
        (reply_with(body=b"\x02" + bytes(8)), "needs mask"),
        (reply_with(body=NO_THETA + b"\x01\x00\x04\x00"), "no such layer"),
        (reply_with(body=NO_THETA + b"\x02\x00" + b"\x03\x00\x00abcd" * 2), "named before"),
        (reply_with(body=NO_THETA + NOTHING + ARRAY + b"\x05\x00"), "dtype 5"),
        (reply_with(body=NO_THETA + NOTHING + ARRAY + b"\x00\x09"), "9 dimensions"),
        (reply_with(body=NO_THETA + NOTHING + ARRAY + b"\x00\x08" + b"\xff" * 32), "too large"),
        (reply_with(body=NO_THETA + NOTHING + b"\x02\x00" + b"\x01x\x04\x00z" * 2), "twice"),
        (reply_with(body=NO_THETA + NOTHING + b"\x01\x00\x02\xc3\x28"), "not UTF-8"),
    ],
)
def test_each_lie_of_a_reply_is_named(message, sentence):
    with pytest.raises(WireError, match=sentence):
        wire.decode_reply(message, SMALL, MASK)


def test_an_empty_array_may_have_any_shape():
    message = reply_with(body=NO_THETA + NOTHING + ARRAY + b"\x00\x02" + bytes(4) + b"\xff" * 4)
    assert wire.decode_reply(message, SMALL, MASK).arrays["x"].shape == (0, 2**32 - 1)
