"""Any request and any reply comes back as it was, and its size is known beforehand."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtiny.federation.wire as wire
from fedtiny.federation.messages import Reply, Request, Verb
from fedtiny.federation.verbs import KNOWN
from fedtiny.federation.wire import NOTHING_KNOWN, Known
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=0x24F), min_size=1).filter(
    str.isprintable
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
DTYPES = st.sampled_from([np.float32, np.float64, np.int32, np.int64, np.uint8])


def anatomy_of(*sizes, dense=()):
    prunable = {f"layer{number}": (size,) for number, size in enumerate(sizes)}
    rest = {f"dense{number}": shape for number, shape in enumerate(dense)}
    blocks = tuple((name,) for name in prunable)
    return ParamSpec(prunable, rest, blocks, (), "layer0", f"layer{len(sizes) - 1}")


def theta_of(mask, seed=0):
    values = np.random.default_rng(seed).standard_normal(length(mask)).astype(np.float32)
    return Theta(mask, values)


@st.composite
def anatomies(draw):
    sizes = draw(st.lists(st.integers(1, 90) | st.just(1), min_size=1, max_size=4))
    dense = draw(st.lists(st.sampled_from([(), (3,), (2, 2), (0,)]), max_size=3))
    return anatomy_of(*sizes, dense=dense)


@st.composite
def masks(draw, param_spec):
    def layer(size):
        return st.none() | st.just([]) | st.sets(st.integers(0, size - 1)).map(sorted)

    return Mask(param_spec, {name: draw(layer(size)) for name, size in param_spec.sizes.items()})


@st.composite
def dense_arrays(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return rng.integers(0, 200, shape).astype(draw(DTYPES))


@st.composite
def gradients(draw, param_spec):
    mask = draw(masks(param_spec))
    layers = draw(st.sets(st.sampled_from(list(param_spec.sizes))))
    first = draw(st.sampled_from([1.0, 2.5]))  # if all are 1 they are votes
    found = {name: np.ones(mask.kept(name), np.float32) for name in layers}
    for values in found.values():
        values[:1] = first
    return {
        name: SparseVector(param_spec.sizes[name], mask.indices(name), values)
        for name, values in found.items()
    }


@st.composite
def requests(draw):
    mask = draw(masks(draw(anatomies())))
    verbs = st.builds(
        Verb,
        NAMES.filter(lambda name: name not in KNOWN),
        st.dictionaries(st.text(), PLAIN, max_size=3),
    )
    return Request(
        action=draw(NAMES),
        method=draw(NAMES),
        round=draw(st.integers(0, 2**32 - 1)),
        program=tuple(draw(st.lists(verbs, max_size=3))),
        theta=theta_of(mask),
        arrays=draw(st.dictionaries(NAMES, dense_arrays(), max_size=3)),
    )


@st.composite
def replies(draw):
    param_spec = draw(anatomies())
    mask = draw(masks(param_spec))
    reply = Reply(
        device=draw(st.integers(0, 2**64 - 1)),
        samples=draw(st.integers(0, 2**64 - 1)),
        theta=draw(st.none() | (st.just(mask) | masks(param_spec)).map(theta_of)),
        gradients=draw(gradients(param_spec)),
        arrays=draw(st.dictionaries(NAMES, dense_arrays(), max_size=3)),
        metrics=draw(st.dictionaries(NAMES, st.floats(), max_size=3)),
    )
    return reply, mask


def same_arrays(left, right):
    assert list(left) == list(right)
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], strict=True)


def same_theta(left, right):
    assert (left is None) == (right is None)
    if left is not None:
        assert left.mask == right.mask
        np.testing.assert_array_equal(left.vector, right.vector, strict=True)


def same_request(left, right):
    facts = ("action", "method", "round", "program")
    assert all(getattr(left, fact) == getattr(right, fact) for fact in facts)
    same_theta(left.theta, right.theta)
    same_arrays(left.arrays, right.arrays)


@given(requests())
@settings(deadline=None)
def test_any_request_comes_back(request):
    theta = request.theta
    for known in (NOTHING_KNOWN, Known(mask=theta.mask.version), Known(theta=theta.version)):
        data = wire.encode_request(request, known)
        assert wire.request_size(request, known) == len(data)
        mask = theta.mask if known.mask else None
        same_request(wire.decode_request(data, theta.param_spec, mask, theta), request)


@given(replies())
@settings(deadline=None)
def test_any_reply_comes_back(asked):
    reply, mask = asked
    data = wire.encode_reply(reply, mask)
    assert wire.reply_size(reply, mask) == len(data)
    found = wire.decode_reply(data, mask.param_spec, mask)
    assert (found.device, found.samples) == (reply.device, reply.samples)
    assert repr(found.metrics) == repr(dict(reply.metrics))
    same_theta(found.theta, reply.theta)
    same_arrays(found.arrays, reply.arrays)
    same_arrays(
        {n: v.dense() for n, v in found.gradients.items()},
        {n: v.dense() for n, v in reply.gradients.items()},
    )
