"""Requests and replies as bytes, and back."""

import ast
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import fedtiny.federation.wire as wire
from fedtiny.errors import WireError
from fedtiny.federation.messages import Reply, Request, Verb, pool_arrays, train
from fedtiny.federation.wire import NOTHING_KNOWN, Known, MissingVersion
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector


def anatomy_of(*sizes, dense=()):
    prunable = {f"layer{number}": (size,) for number, size in enumerate(sizes)}
    rest = {f"dense{number}": shape for number, shape in enumerate(dense)}
    blocks = tuple((name,) for name in prunable)
    return ParamSpec(prunable, rest, blocks, (), "layer0", f"layer{len(sizes) - 1}")


def theta_of(mask, seed=0):
    values = np.random.default_rng(seed).standard_normal(length(mask)).astype(np.float32)
    return Theta(mask, values)


def random_mask(param_spec, density, seed=0):
    rng = np.random.default_rng(seed)
    kept = {n: np.flatnonzero(rng.random(s) < density) for n, s in param_spec.sizes.items()}
    return Mask(param_spec, kept)


def test_decoded_arrays_can_be_written_to_and_are_aligned():
    mask = random_mask(anatomy_of(50), 0.5)
    request = Request("a", "m", 0, (), theta_of(mask), {"x": np.zeros(3)})
    found = wire.decode_request(wire.encode_request(request, NOTHING_KNOWN), mask.param_spec)
    found.arrays["x"][:] = 1
    assert found.theta.vector.flags.aligned


def test_values_may_be_anything_a_float_may_be():
    mask = Mask.full(anatomy_of(3))
    theta = Theta(mask, np.array([np.nan, np.inf, -0.0], np.float32))
    data = wire.encode_reply(Reply(0, 1, theta), mask)
    assert (
        wire.decode_reply(data, mask.param_spec, mask).theta.vector.tobytes()
        == theta.vector.tobytes()
    )


def test_the_mask_is_left_out_when_it_is_known():
    mask = random_mask(anatomy_of(20_000, 5_000), 0.05)
    request = Request("round", "fedtiny", 3, (train(1),), theta_of(mask))
    first = wire.request_size(request, NOTHING_KNOWN)
    second = wire.request_size(request, Known(mask=mask.version))
    third = wire.request_size(request, Known(theta=request.theta.version))
    overhead = 100
    assert 0.6 * mask.count < first - second < 0.8 * mask.count + 20
    assert 4 * mask.count < second < 4 * mask.count + overhead
    assert third < overhead


def test_a_reply_sends_its_own_mask_only():
    mask = random_mask(anatomy_of(20_000), 0.05)
    own = Mask(mask.param_spec, {"layer0": mask.indices("layer0")[1:]})
    same = wire.reply_size(Reply(0, 1, theta_of(mask)), mask)
    other = wire.reply_size(Reply(0, 1, theta_of(own)), mask)
    assert other - same > 0.6 * mask.count


@pytest.mark.parametrize("held", ["nothing", "another mask"])
def test_a_device_that_lacks_the_mask_says_so(held):
    mask = random_mask(anatomy_of(60), 0.5)
    other = None if held == "nothing" else random_mask(mask.param_spec, 0.5, seed=1)
    request = Request("a", "m", 0, (), theta_of(mask))
    data = wire.encode_request(request, Known(mask=mask.version))
    with pytest.raises(MissingVersion, match=f"{mask.version:016x}"):
        wire.decode_request(data, mask.param_spec, other)


@pytest.mark.parametrize("held", ["nothing", "another theta"])
def test_a_device_that_lacks_the_theta_says_so(held):
    mask = random_mask(anatomy_of(60), 0.5)
    other = None if held == "nothing" else theta_of(mask, seed=1)
    request = Request("a", "m", 0, (), theta_of(mask))
    data = wire.encode_request(request, Known(theta=request.theta.version))
    with pytest.raises(MissingVersion, match=f"{request.theta.version:016x}"):
        wire.decode_request(data, mask.param_spec, mask, other)


def test_a_pool_travels_as_one_bundle():
    """VGG11 at a quarter of its width, ten candidates of about one per cent."""
    widths = [3, 16, 32, 64, 64, 128, 128, 128, 128]
    sizes = [9 * before * after for before, after in pairwise(widths)]
    param_spec = anatomy_of(*sizes, dense=[(2_000,)])
    shares = np.random.default_rng(0).uniform(0.005, 0.015, (10, len(sizes)))
    pool = CandidatePool.cut(theta_of(Mask.full(param_spec)), (shares * sizes).astype(np.int32))
    request = Request("choose", "fedtiny", 0, (), pool.theta, pool_arrays(pool.counts))
    naive = sum(8 * theta.mask.count for theta in pool) + 4 * 10 * param_spec.dense_count
    assert wire.request_size(request, NOTHING_KNOWN) < naive / 8
    found = wire.decode_request(wire.encode_request(request, NOTHING_KNOWN), param_spec)
    decoded = CandidatePool(found.theta, found.arrays["pool.counts"])
    assert [theta.version for theta in decoded] == [theta.version for theta in pool]


@pytest.mark.parametrize(
    "changes",
    [
        {"action": ""},
        {"action": "a\x1b[2J"},
        {"action": "x" * 256},
        {"round": -1},
        {"round": 2**32},
        {"arrays": {"x": np.zeros(2, np.float16)}},
        {"arrays": {"x": np.zeros((1,) * 9)}},
        {"arrays": {"x": np.array(["text"])}},
        {"program": (Verb("v", {"x": float("nan")}),)},
        {"program": (Verb("v", {"x": {1, 2}}),)},
        {"program": (Verb("v", {"x": "y" * 300_000}),)},
    ],
)
def test_what_cannot_travel_is_named_before_it_leaves(changes):
    theta = theta_of(Mask.full(anatomy_of(3)))
    plain = {"action": "a", "method": "m", "round": 0, "program": (), "theta": theta}
    request = Request(**{**plain, **changes})
    for sender in (wire.encode_request, wire.request_size):
        with pytest.raises(WireError):
            sender(request, NOTHING_KNOWN)


@pytest.mark.parametrize("layer", ["layer1", "layer0"])
def test_gradients_must_fit_the_model(layer):
    mask = Mask.full(anatomy_of(3))
    gradient = SparseVector(4, np.array([3], np.int32), np.ones(1, np.float32))
    with pytest.raises(WireError, match="do not fit"):
        wire.encode_reply(Reply(0, 1, gradients={layer: gradient}), mask)


def test_votes_travel_without_values():
    mask = Mask.full(anatomy_of(3))

    def encoded(*values):
        vector = SparseVector(3, np.array([0, 2], np.int32), np.array(values, np.float32))
        reply = Reply(0, 1, gradients={"layer0": vector})
        data = wire.encode_reply(reply, mask)
        assert len(data) == wire.reply_size(reply, mask)
        found = wire.decode_reply(data, mask.param_spec, mask).gradients["layer0"]
        assert (found.indices.tolist(), found.values.tolist()) == ([0, 2], [*values])
        return data

    assert len(encoded(1, 1.5)) - len(encoded(1, 1)) == 2 * 4


REQUEST_BYTES = (
    "46544e590301fae0fc3e"  # magic, format 3, request, fingerprint
    "07000000"  # round 7
    "6300000000000000"  # id 99
    "24000000"  # 36 bytes of text: action, method, program
    "5b22616374222c226d222c5b5b22747261696e222c7b2265706f636873223a327d5d5d5d"
    "0382a7ee2d73864211"  # theta: mask and values, mask version
    "00"  # layer0: full
    "010208"  # layer1: a bitmap of positions 1 and 11
    "0100"  # layer2: a bitmap of nothing
    "000000000000803f0000004000004040000080400000a040"  # six float32 values
    "01000178"  # one array, named x
    "0302"  # int64, two dimensions
    "0200000001000000"  # 2 by 1
    "01000000000000000200000000000000"  # 1 and 2
    "a48ca690"  # checksum
)


def test_the_format_does_not_change_by_accident():
    """If this fails, old and new devices no longer understand each other: raise the version."""
    mask = Mask(
        anatomy_of(3, 12, 4, dense=[(1,)]), {"layer0": None, "layer1": [1, 11], "layer2": []}
    )
    theta = Theta(mask, np.arange(6, dtype=np.float32))
    request = Request("act", "m", 7, (train(2),), theta, {"x": np.array([[1], [2]], np.int64)}, 99)
    assert wire.encode_request(request, NOTHING_KNOWN).hex() == REQUEST_BYTES


def test_the_codec_uses_neither_pickle_nor_torch():
    for file in Path(wire.__file__).parent.glob("*.py"):
        nodes = ast.walk(ast.parse(file.read_text()))
        named = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
        assert not named & {"pickle", "marshal", "shelve", "torch"}
    check = "import sys, fedtiny.federation.wire; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
