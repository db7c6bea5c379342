"""Many replies become one mean, a reply at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtiny.federation.messages import Reply
from fedtiny.federation.transport import Traffic, reducer_for
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.vector import SparseVector

from .fakes import ANATOMY, FULL, HALF, theta_of


def reduced(*replies, failed=None, traffic=None, by="mean"):
    reducer = reducer_for(by)
    for reply in replies:
        reducer.add(reply)
    return reducer.outcome(failed or {}, traffic or Traffic())


def gradient(values):
    indices, slopes = np.array([*values], np.int32), np.array([*values.values()], np.float32)
    return {"a.weight": SparseVector(4, indices, slopes)}


def test_every_part_of_a_reply_is_averaged_by_samples():
    x, y = ({"x": np.array([value])} for value in (1.0, 5.0))
    outcome = reduced(
        Reply(0, 1, theta_of(HALF, 4), gradient({0: 8}), x, {"loss": 2}),
        Reply(5, 3, theta_of(HALF, 8), gradient({0: 4, 3: -4}), y, {"loss": 4}),
    )
    assert outcome.answered == (0, 5)
    assert outcome.theta.mask == HALF
    assert set(outcome.theta.vector.tolist()) == {7.0}
    assert outcome.gradients["a.weight"].dense().tolist() == [5, 0, 0, -3]  # a missing entry is 0
    assert outcome.arrays["x"].tolist() == [4]
    assert outcome.metrics == {"loss": 3.5}
    assert outcome.by_device == {0: {"loss": 2}, 5: {"loss": 4}}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 999), st.floats(-9, 9)), min_size=1, max_size=6))
def test_batch_norm_statistics_are_averaged_like_weights_and_over_all(replies):
    thetas = [
        theta_of(FULL).with_dense(
            {"norm.running_mean": [value, -value], "norm.running_var": [value**2, 1]}
        )
        for _, value in replies
    ]
    outcome = reduced(*(Reply(k, n, thetas[k]) for k, (n, _) in enumerate(replies)))
    samples, values = zip(*replies, strict=True)
    mean, variance = (np.average(v, weights=samples) for v in (values, np.square(np.array(values))))
    found = outcome.theta.tensors()
    np.testing.assert_allclose(found["norm.running_mean"], [mean, -mean], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["norm.running_var"], [variance, 1], rtol=1e-5, atol=1e-6)


def test_replies_under_different_masks_are_refused():
    other = Mask(ANATOMY, {"a.weight": [0, 1], "b.weight": [1, 3], "c.weight": [0]})
    with pytest.raises(ValueError, match="different masks"):
        reduced(Reply(0, 1, theta_of(HALF)), Reply(1, 1, theta_of(other)))


def test_equal_masks_need_not_be_the_same_object():
    twin = Mask(ANATOMY, {layer: HALF.indices(layer) for layer in HALF})
    assert reduced(Reply(0, 1, theta_of(HALF)), Reply(1, 1, theta_of(twin))).answered == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        Reply(1, 1, theta_of(), arrays={}),
        Reply(1, 1, theta_of(), arrays={"x": np.zeros(3)}),
        Reply(1, 1, theta_of(), arrays={"x": np.zeros(2)}, metrics={"loss": 1}),
    ],
)
def test_a_reply_that_leaves_something_out_is_refused(other):
    with pytest.raises(ValueError, match="same values"):
        reduced(Reply(0, 1, theta_of(), arrays={"x": np.zeros(2)}), other)


def test_no_reply_gives_no_mean():
    outcome = reduced(failed={2: "asleep"}, traffic=Traffic(7, 0))
    assert outcome.answered == ()
    assert outcome.theta is None
    assert outcome.gradients == outcome.arrays == outcome.metrics == outcome.by_device == {}
    assert outcome.failed == {2: "asleep"}
    assert outcome.traffic == Traffic(7, 0)


def test_one_reply_is_its_own_mean_to_the_last_bit():
    theta = theta_of(HALF, 0.1)
    assert reduced(Reply(3, 17, theta)).theta.version == theta.version


def test_names_may_hold_any_sign():
    outcome = reduced(Reply(0, 1, arrays={"a/b": np.ones(1), "": np.zeros(1)}))
    assert outcome.arrays.keys() == {"a/b", ""}


# The mean over holders


def own_mask(**kept):
    names = {"a.weight": [0], "b.weight": [0], "c.weight": [0]}
    return Mask(ANATOMY, names | {f"{layer}.weight": at for layer, at in kept.items()})


def test_a_weight_is_averaged_over_the_devices_that_hold_it():
    one, two = theta_of(own_mask(a=[0, 1]), 4), theta_of(own_mask(a=[1, 3]), 8)
    outcome = reduced(Reply(0, 1, one), Reply(1, 3, two), by="mean over holders")
    assert outcome.theta.tensor("a.weight").tolist() == [4, 7, 0, 8]
    assert outcome.theta.mask == own_mask(a=[0, 1, 3])
    assert outcome.theta.tensor("head.bias").tolist() == [7]  # everyone holds what is dense


def test_under_one_mask_holders_are_everyone():
    replies = [Reply(k, k + 1, theta_of(HALF, value)) for k, value in enumerate((0.3, -7, 2))]
    plain, holders = (reduced(*replies, by=by) for by in ("mean", "mean over holders"))
    assert holders.theta.mask == plain.theta.mask
    np.testing.assert_allclose(holders.theta.vector, plain.theta.vector, rtol=1e-6)


def test_no_reply_gives_no_mean_over_holders():
    assert reduced(by="mean over holders").theta is None
