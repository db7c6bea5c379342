"""A reply that an honest device would not send is refused in one sentence that says why."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.config import from_dict
from fedtiny.errors import FedTinyError, ReplyError
from fedtiny.federation.messages import (
    HOPELESS_LOSS,
    Reply,
    Request,
    Verb,
    bn_statistics,
    evaluate,
    losses,
    pool_arrays,
    prune_and_grow,
    shared_gradients,
    top_gradients,
    train,
)
from fedtiny.federation.reply_validator import ReplyValidator
from fedtiny.federation.wire import encode_reply
from fedtiny.federation.wire.indices import coded_size, max_coded_size
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

from .fakes import ANATOMY, FULL, HALF, theta_of

CONFIG = from_dict({"density": 0.5})
THETA = theta_of(HALF, 0.5)
DEVICE, SAMPLES = 3, 20
OWN = Mask(ANATOMY, {"a.weight": [1, 2], "b.weight": [0, 3], "c.weight": [1]})
SWAPS = {"a.weight": 1, "b.weight": 1, "c.weight": 1}
POOL = np.array([[2, 2, 1], [1, 2, 1], [2, 1, 1]], np.int32)
HOLDERS = "mean over holders"
NAN, INF = math.nan, math.inf


def validator(*program, reducer="mean", theta=THETA):
    arrays = pool_arrays(POOL) if program[0].name in ("bn_statistics", "losses") else {}
    return ReplyValidator(Request("train", "fedtiny", 0, program, theta, arrays), reducer, CONFIG)


def gradients(layer="a.weight", at=(1,), values=None):
    values = np.ones(len(at), np.float32) if values is None else np.array(values, np.float32)
    size = ANATOMY.sizes.get(layer, 4)
    return {layer: SparseVector(size, np.array(at, np.int32), values)}


def forged(at):
    """Gradients at positions that no sparse vector takes."""
    found = gradients()["a.weight"]
    object.__setattr__(found, "indices", np.array(at, np.int32))
    object.__setattr__(found, "values", np.ones(len(at), np.float32))
    return {"a.weight": found}


def with_values(theta, **changes):
    vector = theta.vector.copy()
    for name, value in changes.items():
        vector[theta.places[name.replace("__", ".")].start] = value
    return Theta(theta.mask, vector)


HONEST = {
    "train": (
        validator(train(2), top_gradients({"a.weight": 2, "c.weight": 1})),
        Reply(
            DEVICE,
            SAMPLES,
            THETA,
            gradients(at=(1, 3)) | gradients("c.weight", (1,)),
            metrics={"loss": 0.25},
        ),
    ),
    "votes": (
        validator(train(2), top_gradients({"a.weight": 2}, votes=True)),
        Reply(DEVICE, SAMPLES, THETA, gradients(at=(1, 3)), metrics={"loss": 0.25}),
    ),
    "shared": (
        validator(train(2), shared_gradients({"a.weight": 2}, seed=4)),
        Reply(DEVICE, SAMPLES, THETA, arrays={"a.weight": np.ones(2, "f4")}, metrics={"loss": 0.2}),
    ),
    "prune_and_grow": (
        validator(train(1), prune_and_grow(SWAPS), train(1), reducer=HOLDERS),
        Reply(DEVICE, SAMPLES, theta_of(OWN), metrics={"loss": 0.25}),
    ),
    "dense gradients": (
        validator(train(1, sum_dense_gradients=True)),
        Reply(
            DEVICE,
            SAMPLES,
            THETA,
            arrays={name: np.zeros(shape, "f4") for name, shape in ANATOMY.prunable.items()},
            metrics={"loss": 0.25},
        ),
    ),
    "bn_statistics": (
        validator(bn_statistics(8)),
        Reply(
            DEVICE,
            SAMPLES,
            arrays={name: np.ones((3, 2), "f4") for name in ANATOMY.statistics},
        ),
    ),
    "losses": (
        validator(losses()),
        Reply(DEVICE, SAMPLES, arrays={"losses": np.ones(3, "f4")}),
    ),
    "evaluate": (
        validator(evaluate()),
        Reply(DEVICE, SAMPLES, metrics={"loss": 2.0, "accuracy": 0.5}),
    ),
    "own verb": (
        validator(Verb("shout")),
        Reply(DEVICE, 5, arrays={"any": np.ones((2, 2))}, metrics={"loudness": 3.0}),
    ),
}

BAD = {
    "train": {
        "signed by device 4": {"device": 4},
        "claims 0 samples": {"samples": 0},
        "claims -5 samples": {"samples": -5},
        "claims 21 samples": {"samples": 21},
        "has no theta": {"theta": None},
        "theta holds NaN": {"theta": with_values(THETA, a__weight=NAN)},
        "theta holds NaN or inf": {"theta": with_values(THETA, head__bias=-INF)},
        "variance in norm.running_var": {"theta": with_values(THETA, norm__running_var=-1)},
        "another mask": {"theta": theta_of(OWN)},
        "another mask than": {"theta": theta_of(FULL)},
        "lacks gradients of c.weight": {"gradients": gradients()},
        "has gradients of b.weight": {
            "gradients": gradients() | gradients("c.weight") | gradients("b.weight", (0,))
        },
        "3 gradients of a.weight": {
            "gradients": gradients(at=(0, 1, 3)) | gradients("c.weight", (1,))
        },
        "gradient of a kept": {"gradients": gradients(at=(1, 2)) | gradients("c.weight", (1,))},
        "gradient of a kept weight of c": {"gradients": gradients() | gradients("c.weight", (0,))},
        "gradients of a.weight, not": {
            "gradients": {"a.weight": SparseVector(9, np.array([8], "i4"), np.ones(1, "f4"))}
            | gradients("c.weight", (1,))
        },
        "gradient of a.weight is NaN": {
            "gradients": gradients(values=[NAN]) | gradients("c.weight", (1,))
        },
        "a.weight is NaN or infinite": {
            "gradients": gradients(values=[INF]) | gradients("c.weight", (1,))
        },
        "out of range": {"gradients": forged([4]) | gradients("c.weight", (1,))},
        "there twice": {"gradients": forged([1, 1]) | gradients("c.weight", (1,))},
        "a.weight is out of range": {"gradients": forged([-1]) | gradients("c.weight", (1,))},
        "array extra, which nobody": {"arrays": {"extra": np.ones(1, "f4")}},
        "lacks the metric loss": {"metrics": {}},
        "metric more, which nobody": {"metrics": {"loss": 1.0, "more": 1.0}},
        "loss is nan": {"metrics": {"loss": NAN}},
        "loss is inf": {"metrics": {"loss": INF}},
        "loss is 1e\\+300": {"metrics": {"loss": 1e300}},
    },
    "votes": {
        "another vote than 1": {"gradients": gradients(at=(1, 3), values=[1, 2])},
        "gradient of a kept": {"gradients": gradients(at=(1, 2))},
        "3 gradients of a.weight": {"gradients": gradients(at=(0, 1, 3))},
    },
    "shared": {
        "lacks the array a.weight": {"arrays": {}},
        "array a.weight is": {"arrays": {"a.weight": np.ones(3, "f4")}},
        "array a.weight holds NaN": {"arrays": {"a.weight": np.array([1, NAN], "f4")}},
        "has gradients of a.weight": {"gradients": gradients()},
    },
    "prune_and_grow": {
        "mask has density 1": {"theta": theta_of(FULL)},
        "density 0.6, above 0.5": {"theta": theta_of(OWN.replace({"a.weight": [0, 1, 2]}))},
        "more or fewer weights": {
            "theta": theta_of(OWN.replace({"a.weight": [0, 1, 2], "b.weight": [0]}))
        },
        "fewer weights of a layer": {"theta": theta_of(OWN.replace({"a.weight": []}))},
        "swaps more weights of a.weight": {"theta": theta_of(OWN.replace({"a.weight": [1, 3]}))},
        "theta holds NaN": {"theta": with_values(theta_of(OWN), a__weight=NAN)},
    },
    "dense gradients": {
        "lacks the array a.weight": {"arrays": {}},
        r"a.weight is \(5,\) float32": {
            "arrays": HONEST["dense gradients"][1].arrays | {"a.weight": np.zeros(5, "f4")}
        },
        "c.weight holds NaN": {
            "arrays": HONEST["dense gradients"][1].arrays | {"c.weight": np.full(2, NAN, "f4")}
        },
    },
    "bn_statistics": {
        "has a theta, which nobody": {"theta": THETA},
        "lacks the array norm.running_mean": {"arrays": {}},
        r"running_mean is \(2, 2\)": {
            "arrays": {name: np.ones((2, 2), "f4") for name in ANATOMY.statistics}
        },
        r"running_mean is \(3, 2\) float64": {
            "arrays": {name: np.ones((3, 2)) for name in ANATOMY.statistics}
        },
        "variance in norm.running_var is negative": {
            "arrays": HONEST["bn_statistics"][1].arrays
            | {"norm.running_var": np.full((3, 2), -1, "f4")}
        },
        "norm.running_mean holds NaN": {
            "arrays": HONEST["bn_statistics"][1].arrays
            | {"norm.running_mean": np.full((3, 2), INF, "f4")}
        },
    },
    "losses": {
        r"losses is \(4,\)": {"arrays": {"losses": np.ones(4, "f4")}},
        "losses holds NaN": {"arrays": {"losses": np.array([1, NAN, 1], "f4")}},
        "loss is negative": {"arrays": {"losses": np.array([1, -1e30, 1], "f4")}},
        "no candidate has a finite loss": {"arrays": {"losses": np.full(3, HOPELESS_LOSS, "f4")}},
        "has gradients of a.weight": {"gradients": gradients()},
    },
    "evaluate": {
        "accuracy is 1e\\+30": {"metrics": {"loss": 1.0, "accuracy": 1e30}},
        "accuracy is -0.1": {"metrics": {"loss": 1.0, "accuracy": -0.1}},
        "loss is -1": {"metrics": {"loss": -1.0, "accuracy": 0.5}},
        "accuracy is nan": {"metrics": {"loss": 1.0, "accuracy": NAN}},
        "lacks the metric accuracy": {"metrics": {"loss": 1.0}},
    },
    "own verb": {
        "claims 1000001 samples": {"samples": 1_000_001},
        "any holds NaN": {"arrays": {"any": np.full((2, 2), NAN)}},
        "any holds NaN, infinity": {"arrays": {"any": np.full((2, 2), 1e300)}},
        "any holds": {"arrays": {"any": np.array([["a", "b"], ["c", "d"]])}},
        "loudness is inf": {"metrics": {"loudness": INF}},
        "another mask": {"theta": theta_of(OWN)},
    },
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_reply_passes(kind):
    exam, reply = HONEST[kind]
    exam.check(reply, DEVICE, SAMPLES)
    assert exam.decoded(encode_reply(reply, THETA.mask)).samples == reply.samples


@pytest.mark.parametrize(
    ("kind", "sentence"), [(kind, sentence) for kind in BAD for sentence in BAD[kind]]
)
def test_each_bad_reply_is_refused(kind, sentence):
    exam, reply = HONEST[kind]
    bad = replace(reply, **BAD[kind][sentence])
    with pytest.raises(ReplyError, match=sentence) as refused:
        exam.check(bad, DEVICE, SAMPLES)
    words = str(refused.value)
    assert words.startswith("reply refused: ")
    assert "\n" not in words
    assert isinstance(refused.value, FedTinyError)


def test_an_own_mask_needs_a_swap_and_the_mean_over_holders():
    reply = Reply(DEVICE, SAMPLES, theta_of(OWN), metrics={"loss": 1.0})
    for exam in (
        validator(train(1), reducer=HOLDERS),
        validator(train(1), prune_and_grow({"a.weight": 1}), reducer="mean"),
    ):
        with pytest.raises(ReplyError, match="another mask"):
            exam.check(reply, DEVICE, SAMPLES)


def test_an_equal_mask_need_not_be_the_same_object():
    twin = Mask(ANATOMY, {layer: HALF.indices(layer) for layer in HALF})
    reply = Reply(DEVICE, SAMPLES, theta_of(twin), metrics={"loss": 1.0})
    validator(train(1)).check(reply, DEVICE, SAMPLES)
    assert twin is not HALF


def test_a_full_layer_has_no_pruned_weight():
    mask = HALF.replace({"a.weight": None})
    exam = validator(top_gradients({"a.weight": 1}), theta=theta_of(mask))
    exam.check(Reply(DEVICE, SAMPLES, gradients=gradients(at=())), DEVICE, SAMPLES)
    with pytest.raises(ReplyError, match="gradient of a kept"):
        exam.check(Reply(DEVICE, SAMPLES, gradients=gradients(at=(1,))), DEVICE, SAMPLES)


def test_where_anything_may_come_it_is_the_same_from_every_device():
    exam, reply = validator(Verb("shout")), HONEST["own verb"][1]
    exam.check(reply, DEVICE, SAMPLES)
    exam.check(replace(reply, arrays={"any": np.zeros((2, 2))}), DEVICE, SAMPLES)
    for change in (
        {"arrays": {"any": np.zeros(3)}},
        {"arrays": {}},
        {"theta": THETA},
        {"gradients": gradients()},
        {"metrics": {}},
    ):
        with pytest.raises(ReplyError, match="other things"):
            exam.check(replace(reply, **change), DEVICE, SAMPLES)


def test_a_refused_reply_does_not_say_what_is_to_come():
    exam, reply = validator(Verb("shout")), HONEST["own verb"][1]
    with pytest.raises(ReplyError, match="claims 0"):
        exam.check(replace(reply, samples=0, arrays={}), DEVICE, SAMPLES)
    exam.check(reply, DEVICE, SAMPLES)


# Bytes


@pytest.mark.parametrize("kind", HONEST)
def test_no_honest_reply_is_longer_than_the_limit_and_a_longer_one_is_not_read(kind):
    exam, reply = HONEST[kind]
    data = encode_reply(reply, THETA.mask)
    assert len(data) <= exam.limit
    with pytest.raises(ReplyError, match=f"no honest reply has more than {exam.limit}"):
        exam.decoded(bytes(exam.limit + 1))
    with pytest.raises(ReplyError, match="not a fedtiny message"):
        exam.decoded(bytes(exam.limit))


@pytest.mark.parametrize("kind", HONEST)
def test_every_truncation_is_refused(kind):
    exam, reply = HONEST[kind]
    data = encode_reply(reply, THETA.mask)
    for end in range(len(data)):
        with pytest.raises(ReplyError):
            exam.decoded(data[:end])


def test_the_limit_is_close_to_what_honest_devices_send():
    exam, reply = HONEST["losses"]
    assert exam.limit == len(encode_reply(reply, THETA.mask))
    exam, reply = HONEST["train"]
    assert exam.limit < len(encode_reply(reply, THETA.mask)) + 40


@given(
    st.integers(1, 3000).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1))))
)
def test_coded_positions_never_exceed_their_bound(layer):
    size, chosen = layer
    positions = np.array(sorted(chosen), np.int32)
    for count in (len(positions), min(size, len(positions) + 7), size):
        assert coded_size(positions, size) <= max_coded_size(count, size)


@pytest.mark.slow
@given(st.integers(10**4, 10**6), st.floats(0.0005, 0.6), st.sampled_from(["even", "start", "end"]))
def test_coded_positions_of_large_layers_never_exceed_their_bound(size, density, where):
    count = max(1, int(density * size))
    draw = np.random.default_rng(count)
    spread = {"even": size, "start": min(size, 2 * count), "end": min(size, 2 * count)}[where]
    positions = np.sort(draw.choice(spread, count, replace=False)).astype(np.int32)
    positions += np.int32(size - spread if where == "end" else 0)
    found, most = coded_size(positions, size), max_coded_size(count, size)
    assert found <= most
    if where == "even":
        assert most <= 1.7 * found + 40
