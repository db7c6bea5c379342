"""Clipped updates and robust means of replies, with numbers that can be checked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedtiny.config import RobustnessConfig
from fedtiny.federation.messages import Reply
from fedtiny.federation.transport import REDUCERS, Traffic, clipped, reducer_for
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

THREE = ParamSpec({"w": (3,)}, {"norm.running_var": (1,)}, (("w",),), (), "w", "w")
HUGE = 1e30


def theta(*weights, var=1.0):
    """Three weights, None where one is pruned, and a statistic."""
    kept = [place for place, weight in enumerate(weights) if weight is not None]
    values = [weight for weight in weights if weight is not None]
    return Theta(Mask(THREE, {"w": kept}), np.array([*values, var], np.float32))


def gradient(values):
    slopes = np.array([*values.values()], np.float32)
    return {"w": SparseVector(3, np.array([*values], np.int32), slopes)}


def reduced(replies, by="mean", sent=None, **robustness):
    reducer = reducer_for(by, RobustnessConfig(**robustness), sent or theta(0, 0, 0))
    for device, reply in enumerate(replies):
        reducer.add(reply if isinstance(reply, Reply) else Reply(device, 1, reply))
    return reducer.outcome({}, Traffic())


# The median and the trimmed mean


@pytest.mark.parametrize("by", ["mean", "mean over holders"])
def test_the_median_of_each_weight_and_of_statistics(by):
    replies = [theta(1, 5, 2, var=4), theta(3, 1, 9, var=2), theta(2, 8, 4, var=7)]
    outcome = reduced(replies, by, mean="median")
    assert outcome.theta.vector.tolist() == [2, 5, 4, 4]


@pytest.mark.parametrize("by", ["mean", "mean over holders"])
def test_the_trimmed_mean_of_each_weight(by):
    replies = [theta(k, 2 * k, 10 * k) for k in (0, 1, 2, 3, 100)]
    outcome = reduced(replies, by, mean="trimmed", trim=0.2)
    assert outcome.theta.vector.tolist() == [2, 4, 20, 1]


def test_the_median_over_holders():
    replies = [theta(1, None, 4), theta(3, 7, None), theta(9, 1, None), theta(None, 2, None)]
    found = reduced(replies, "mean over holders", mean="median").theta
    assert found.vector.tolist() == [3, 2, 4, 1]
    assert found.mask == Mask(THREE, {"w": None})


def test_every_device_counts_the_same_whatever_it_claims():
    replies = [Reply(k, n, theta(k, k, k)) for k, n in ((1, 1), (2, 1), (9, 10**6))]
    assert reduced(replies, mean="median").theta.vector[0] == 2
    assert reduced(replies).theta.vector[0] > 8


def test_gradients_and_arrays_too_and_metrics_stay_weighted():
    replies = [
        Reply(0, 1, None, gradient({0: 4, 1: 2}), {"x": np.array([1.0])}, {"loss": 1.0}),
        Reply(1, 1, None, gradient({0: 6}), {"x": np.array([5.0])}, {"loss": 2.0}),
        Reply(2, 2, None, gradient({0: 5, 2: HUGE}), {"x": np.array([HUGE])}, {"loss": 3.0}),
    ]
    outcome = reduced(replies, mean="median")
    assert outcome.gradients["w"].dense().tolist() == [5, 0, 0]
    assert outcome.arrays["x"].tolist() == [5]
    assert outcome.metrics == {"loss": 2.25}
    assert outcome.theta is None


THETAS = st.lists(
    hnp.arrays(np.float32, 4, elements=st.floats(-100, 100, width=32)), min_size=1, max_size=8
)


@given(THETAS)
def test_the_median_of_thetas_is_numpy_s(vectors):
    full = Mask.full(THREE)
    found = reduced([Theta(full, vector) for vector in vectors], mean="median").theta
    expected = np.median(np.stack(vectors).astype(np.float64), axis=0).astype(np.float32) + 0
    assert (found.vector + 0).tobytes() == expected.tobytes()


@pytest.mark.slow
@given(THETAS, st.data())
def test_the_median_over_holders_is_numpy_s_nanmedian(vectors, data):
    masks = st.lists(st.booleans(), min_size=3, max_size=3)
    table = np.stack(vectors).astype(np.float64)
    for row in table:
        row[:3][~np.array(data.draw(masks))] = np.nan
    replies = [theta(*(None if np.isnan(w) else w for w in row[:3]), var=row[3]) for row in table]
    found = reduced(replies, "mean over holders", mean="median").theta
    held = ~np.isnan(table).all(axis=0)
    expected = np.nanmedian(table[:, held], axis=0).astype(np.float32) + 0
    assert (found.vector + 0).tobytes() == expected.tobytes()
    assert found.mask.indices("w").tolist() == np.flatnonzero(held[:3]).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["mean", "mean over holders"])
@pytest.mark.parametrize("evil", [HUGE, -HUGE])
@given(
    honest=hnp.arrays(np.float32, (4, 4), elements=st.floats(0, 100, width=32)), k=st.integers(0, 4)
)
def test_one_hostile_device_of_five_moves_the_mean_and_not_the_middle(by, evil, honest, k):
    full = Mask.full(THREE)
    vectors = [*honest[:k], np.full(4, evil, np.float32), *honest[k:]]
    replies = [Theta(full, vector) for vector in vectors]
    low, high = honest.min(axis=0), honest.max(axis=0)
    for robustness in ({"mean": "median"}, {"mean": "trimmed"}):
        found = reduced(replies, by, **robustness).theta.vector
        assert (found >= low).all()
        assert (found <= high).all()
    assert (np.abs(reduced(replies, by).theta.vector) > 1e29).all()


# Clipping


def test_an_update_is_scaled_down_to_the_norm():
    found = clipped(theta(3, 1, 5, var=1), theta(0, 1, 1, var=1), norm=2.5)
    np.testing.assert_allclose(found.vector, [1.5, 1, 3, 1], rtol=1e-6)


def test_an_update_within_the_norm_is_not_touched():
    own = theta(3, 1, 5)
    assert clipped(own, theta(0, 1, 1), norm=5) is own


def test_under_a_mask_of_its_own_a_grown_weight_starts_at_zero():
    found = clipped(theta(None, 4, 3, var=1), theta(7, 4, None, var=1), norm=1.5)
    np.testing.assert_allclose(found.vector, [4, 1.5, 1], rtol=1e-6)
    assert found.mask.indices("w").tolist() == [1, 2]


@given(
    hnp.arrays(np.float32, 4, elements=st.floats(-(2.0**99), 2.0**99, width=32)),
    st.floats(0.01, 1e3),
)
def test_the_norm_is_never_exceeded_and_the_direction_is_kept(vector, norm):
    sent = theta(1, -2, 3, var=4)
    own = Theta(sent.mask, vector)
    step = clipped(own, sent, norm).vector.astype(np.float64) - sent.vector
    wanted = vector.astype(np.float64) - sent.vector
    assert np.linalg.norm(step) <= norm * (1 + 1e-5) + 1e-5
    share = min(1.0, norm / max(np.linalg.norm(wanted), 1e-12))
    np.testing.assert_allclose(step, wanted * share, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by", ["mean", "mean over holders"])
def test_the_mean_of_clipped_updates(by):
    replies = [Reply(0, 1, theta(3, 0, 4)), Reply(1, 1, theta(HUGE, 0, 0))]
    found = reduced(replies, by, sent=theta(0, 0, 0), clip_norm=5.0).theta
    np.testing.assert_allclose(found.vector, [4, 0, 2, 1], rtol=1e-6)


def test_clipping_leaves_replies_without_theta_alone():
    reply = Reply(0, 1, arrays={"losses": np.full(2, HUGE)})
    assert reduced([reply], clip_norm=1.0).arrays["losses"].tolist() == pytest.approx([HUGE] * 2)


# As the config asks


@pytest.mark.parametrize("by", REDUCERS)
def test_by_default_nothing_is_changed(by):
    replies = [Reply(0, 3, theta(1, 2, 3)), Reply(1, 1, theta(5, 6, 7))]
    plain = reducer_for(by)
    for reply in replies:
        plain.add(reply)
    expected = plain.outcome({}, Traffic()).theta
    assert reduced(replies, by).theta.version == expected.version


def test_no_reply_gives_no_mean():
    for by in REDUCERS:
        for mean in ("median", "trimmed"):
            outcome = reduced([], by, mean=mean, clip_norm=1.0)
            assert outcome.theta is None
            assert outcome.gradients == outcome.arrays == {}
