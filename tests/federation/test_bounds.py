"""What is out of bounds among devices, with numbers that can be checked by hand."""

import numpy as np
import pytest

from fedtiny.config import from_dict
from fedtiny.federation import held_replies
from fedtiny.federation.bounds import DIRECTION, Bounds
from fedtiny.federation.directions import cosines
from fedtiny.federation.held_replies import HeldReplies
from fedtiny.federation.messages import (
    HOPELESS_LOSS,
    Reply,
    Request,
    losses,
    pool_arrays,
    top_gradients,
    train,
)
from fedtiny.federation.norms import (
    LOSSES,
    STATISTICS,
    WEIGHTS,
    Measured,
    norm,
    step_norms,
)
from fedtiny.federation.reply_validator import Arrived, ReplyValidator, collect
from fedtiny.federation.transport import Traffic
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

NORM = {"norm.running_mean": (1,), "norm.running_var": (1,)}
SPEC = ParamSpec({"w": (3,)}, NORM, (("w",),), ("norm",), "w", "w")
FULL = Mask.full(SPEC)
SENT = Theta(FULL, np.float32([1, 1, 1, 0, 5]))


def theta(*steps, var=1.0):
    """Three weights and a variance, as steps away from what was sent."""
    return Theta(FULL, SENT.vector + np.float32([*steps, 0, var]))


def gradient(*values):
    return {"w": SparseVector(3, np.arange(3, dtype=np.int32), np.float32(values))}


def bounded(replies, bound=3.0, has_losses=False):
    """The replies as they count, and who is named."""
    measured = {reply.device: Measured.of(reply, SENT, has_losses) for reply in replies}
    bounds = Bounds.among(measured, SENT, bound)
    bounds.compare_directions(replies)
    bounds.learn_ranges(replies)
    return [bounds.applied(reply) for reply in replies], bounds


def thetas(*own):
    return [Reply(device, 1, one) for device, one in enumerate(own)]


def test_norms_of_a_step_and_of_its_statistics():
    assert step_norms(theta(3, 0, 4, var=-2), SENT) == (5.0, 2.0)


def test_under_a_mask_of_its_own_a_grown_weight_steps_away_from_zero():
    sent = Theta(Mask(SPEC, {"w": [0]}), np.float32([7, 0, 5]))
    own = Theta(Mask(SPEC, {"w": [2]}), np.float32([4, 0, 5]))
    assert step_norms(own, sent) == (4.0, 0.0)


def test_a_norm_is_that_of_numpy_however_it_is_cut():
    values = np.random.default_rng(0).standard_normal(100_001).astype(np.float32)
    doubles = values.astype(np.float64)
    assert norm(values) == pytest.approx(np.linalg.norm(doubles), rel=1e-6)
    assert norm(doubles) == pytest.approx(np.linalg.norm(doubles), rel=1e-14)


@pytest.mark.parametrize("value", [3e38, 1e30, 1e-30, 1e-45])
def test_a_norm_of_squares_that_float32_has_not_is_computed_in_float64(value):
    values = np.float32([value, value])
    own = float(values[0])
    assert norm(values) == pytest.approx(own * 2**0.5)
    assert norm(values, -values) == pytest.approx(own * 8**0.5)


def test_within_bounds_a_reply_is_the_very_same():
    replies = thetas(theta(1, 0, 0), theta(0, 2, 0), theta(0, 0, 6))
    found, bounds = bounded(replies)
    assert all(one is other for one, other in zip(found, replies, strict=True))
    assert bounds.named == {}
    assert bounds.largest == {0: 1.0, 1: 1.0, 2: 3.0}  # of statistics, 1, 1 and 1


def test_an_update_out_of_bounds_is_scaled_down_to_the_median():
    found, bounds = bounded(thetas(theta(1, 0, 0), theta(0, 2, 0), theta(0, 0, 8)))
    np.testing.assert_allclose(found[2].theta.vector, theta(0, 0, 2).vector)
    assert bounds.named == {2: "update 4 times the median norm"}


def test_one_beyond_twice_the_bound_is_left_out():
    found, bounds = bounded(thetas(theta(1, 0, 0), theta(0, 2, 0), theta(0, 0, 3e38)))
    assert found[2].theta is None
    assert bounds.out[2].keys() == {WEIGHTS}


def test_statistics_are_held_against_statistics_and_by_a_wider_bound():
    found, bounds = bounded(thetas(theta(9, 0, 0), theta(9, 0, 0, var=4.5), theta(9, 0, 0, var=5)))
    assert bounds.out == {}
    found, bounds = bounded(
        thetas(*[theta(9, 0, 0)] * 2, theta(9, 0, 0, var=5), theta(9, 0, 0, var=-1))
    )
    assert bounds.out[2].keys() == {STATISTICS}
    np.testing.assert_allclose(found[2].theta.vector, theta(9, 0, 0, var=1).vector)


def test_gradients_out_of_bounds_are_scaled_or_left_out_layer_by_layer():
    replies = [
        Reply(device, 1, None, gradient(*own))
        for device, own in enumerate(([0, 3, 4], [5, 0, 0], [0, 0, 20], [0, 0, 1e30]))
    ]
    found, bounds = bounded(replies, bound=1.5)
    assert found[2].gradients["w"].values.tolist() == [0, 0, 12.5]
    assert len(found[3].gradients["w"]) == 0
    assert bounds.named[2] == "gradients of w 1.6 times the median norm"


def test_an_array_is_clipped_to_the_range_of_the_others():
    own = {0: [1, 2], 1: [2, 1], 2: [1, 1], 3: [1e30, -1e30]}
    replies = [Reply(k, 1, arrays={"x": np.float32(values)}) for k, values in own.items()]
    found, bounds = bounded(replies)
    assert found[3].arrays["x"].tolist() == [2, 1]
    assert found[0] is replies[0]
    assert bounds.named[3].startswith("x ")


def test_where_all_within_bounds_in_an_array_are_left_out_it_is_clipped_to_their_range():
    steps = [theta(50, 0, 0), *[theta(1, 0, 0, var=50)] * 2, *[theta(1, 0, 0)] * 2]
    arrays = [[1, 2], [2, 1], [3, 1], [100, 100], [0, 200]]
    replies = [
        Reply(k, 1, step, arrays={"x": np.float32(values)})
        for k, (step, values) in enumerate(zip(steps, arrays, strict=True))
    ]
    found, bounds = bounded(replies)
    assert [bounds.leaves_out(k) for k in range(5)] == [True, True, True, False, False]
    assert [reply.arrays["x"].tolist() for reply in found[3:]] == [[3, 2], [1, 2]]
    assert sorted(bounds.out) == [0, 1, 2, 3, 4]


def told(*rows):
    return [Reply(k, 1, arrays={"losses": np.float32(row)}) for k, row in enumerate(rows)]


def test_who_claims_no_loss_for_one_candidate_counts_as_a_typical_device():
    replies = told([2, 2.1, 2.3], [1, 1.1, 1.2], [3, 3.1, 3.3], [2, 2.1, 0])
    found, bounds = bounded(replies, has_losses=True)
    assert bounds.out.keys() == {3}
    assert LOSSES in bounds.out[3]
    np.testing.assert_allclose(found[3].arrays["losses"], [1.9, 2.0, 2.15], rtol=0.05)
    assert found[0] is replies[0]


@pytest.mark.parametrize("claim", [[1e30] * 3, [1e37, 1e37, 0]])
def test_who_claims_enormous_losses_counts_as_a_typical_device(claim):
    found, bounds = bounded(
        told([2, 2.1, 2.3], [1, 1.1, 1.2], [3, 3.1, 3.3], claim), has_losses=True
    )
    assert bounds.out.keys() == {3}
    assert found[3].arrays["losses"].max() < 4


def test_a_candidate_that_is_hopeless_to_all_stays_so():
    replies = told(*([2 + k / 10, HOPELESS_LOSS, 2.5] for k in range(4)))
    found, bounds = bounded(replies, has_losses=True)
    assert bounds.out == {}
    assert all(reply.arrays["losses"][1] == np.float32(HOPELESS_LOSS) for reply in found)


@pytest.mark.parametrize("count", [1, 2])
def test_of_fewer_than_three_devices_none_can_be_told_from_the_others(count):
    replies = thetas(theta(1, 0, 0), theta(1e30, 0, 0))[:count]
    assert bounded(replies)[0] == replies


def test_who_has_nothing_in_a_part_says_nothing_of_the_others():
    replies = [Reply(k, 1, None, gradient(0, 0, k)) for k in (0, 0, 0, 1, 1, 2)]
    assert bounded([Reply(n, 1, None, r.gradients) for n, r in enumerate(replies)])[1].out == {}


def test_statistics_that_most_leave_as_they_are_are_moved_by_nobody():
    still = theta(1, 0, 0, var=0)
    found, bounds = bounded(thetas(still, still, still, theta(1, 0, 0, var=1e-3)))
    assert found[3].theta is None
    assert bounds.named == {3: "batch-norm statistics moved that most left as they were"}
    found, bounds = bounded(thetas(still, still, *[theta(1, 0, 0, var=1)] * 2))
    assert bounds.out == {}


# As replies are folded


def request_with(*program, arrays=None):
    return Request("train", "fedavg", 0, program, SENT, arrays or {})


def folded(replies, bound=3.0, request=None):
    config = from_dict({"robustness": {"bound": bound}})
    validator = ReplyValidator(request or request_with(train(1)), "mean", config)
    arrived = (Arrived(reply.device, 10, reply, 70) for reply in replies)
    return collect(arrived, validator, {}, Traffic(), 10)


def trained(*own):
    return [Reply(k, 1, one, metrics={"loss": 2.0}) for k, one in enumerate(own)]


@pytest.mark.parametrize("in_memory", [0, 100, 10**6])
def test_one_huge_update_is_left_out_and_its_device_named(in_memory, monkeypatch):
    monkeypatch.setattr(held_replies, "in_memory", lambda: in_memory)
    replies = trained(theta(1, 0, 0), theta(0, 2, 0), theta(3, 0, 0), theta(3e38, 3e38, 0))
    outcome = folded(replies)
    honest = folded(replies[:3])
    assert outcome.theta.version == honest.theta.version
    assert outcome.answered == (0, 1, 2, 3)
    assert outcome.bounded.keys() == {3}
    assert honest.bounded == {}


def test_without_a_bound_it_counts_as_it_is():
    replies = trained(theta(1, 0, 0), theta(0, 2, 0), theta(3, 0, 0), theta(3e38, 0, 0))
    outcome = folded(replies, bound=0.0)
    assert outcome.theta.vector[0] > 1e37
    assert outcome.bounded == outcome.largest_norms == {}


def test_where_all_are_honest_the_bound_changes_no_bit():
    draw = np.random.default_rng(0)
    replies = trained(*(theta(*draw.standard_normal(3), var=abs(draw.normal())) for _ in range(9)))
    assert folded(replies).theta.version == folded(replies, bound=0.0).theta.version


def test_one_device_does_not_choose_the_candidate():
    counts = np.int32([[1], [2], [3]])
    request = request_with(losses(), arrays=pool_arrays(counts))
    honest = [[2.0, 2.5, 3.0], [1.5, 2.1, 2.4], [2.2, 2.6, 3.3], [1.9, 2.2, 2.7]]
    for claim in ([9, 9, 0], [2.0, 2.5, 0], [1e37, 1e37, 0]):
        outcome = folded(told(*honest, claim), request=request)
        assert np.argmin(outcome.arrays["losses"]) == 0
        assert outcome.bounded.keys() == {4}


def test_a_claimed_training_loss_is_bounded_too():
    replies = trained(*[theta(1, 0, 0)] * 3)
    liar = Reply(3, 1, theta(1, 0, 0), metrics={"loss": 1e37})
    assert folded([*replies, liar]).metrics["loss"] == pytest.approx(2)


# Replies that wait


@pytest.mark.parametrize("in_memory", [0, 100, 10**6])
def test_held_replies_come_back_as_they_were(in_memory):
    held = HeldReplies(FULL, in_memory)
    replies = [
        Reply(
            k, 7, theta(k, 0, 0), gradient(1, k, 0), {"x": np.float32([k])}, {"loss": 0.1 * k}, 5, 9
        )
        for k in range(3)
    ]
    for reply in replies:
        held.add(reply, 60)
    for _ in range(2):
        found = list(held)
        assert [one.theta.version for one in found] == [one.theta.version for one in replies]
        assert [one.metrics for one in found] == [one.metrics for one in replies]
        assert [(one.device, one.round, one.request) for one in found] == [
            (k, 5, 9) for k in range(3)
        ]
        assert [one.gradients["w"].values.tolist() for one in found] == [
            [1, k, 0] for k in range(3)
        ]
    held.close()
    assert list(held) == []


# By samples


def stepping(*own):
    """Replies of so many samples each, with steps of a length along one weight."""
    return [Reply(k, samples, theta(length, 0, 0)) for k, (samples, length) in enumerate(own)]


@pytest.mark.parametrize(
    ("samples", "limit"),
    [(100, 3), (400, 6), (225, 4.5), (900, 9), (10**6, 9), (64, 2.4), (25, 1.5), (1, 1.5)],
)
def test_the_bound_of_a_step_goes_with_the_root_of_the_samples(samples, limit):
    usual = [(100, 1), (100, 1), (100, 1)]
    assert list(bounded(stepping(*usual, (samples, 0.99 * limit)))[1].out) == []
    found, bounds = bounded(stepping(*usual, (samples, 1.1 * limit)))
    assert list(bounds.out) == [3]
    np.testing.assert_allclose(found[3].theta.vector, theta(1, 0, 0).vector)
    assert bounded(stepping(*usual, (samples, 2.1 * limit)))[0][3].theta is None


@pytest.mark.parametrize(
    ("samples", "limit"), [(100, 3), (400, 3), (900, 3), (10**6, 3), (64, 3.75), (25, 6), (1, 6)]
)
def test_the_bound_of_gradients_widens_for_few_samples_and_never_narrows(samples, limit):
    def out(length):
        usual = [Reply(k, 100, None, gradient(0, 0, 1)) for k in range(3)]
        return list(bounded([*usual, Reply(3, samples, None, gradient(0, 0, length))])[1].out)

    assert out(0.99 * limit) == []
    assert out(1.01 * limit) == [3]


# By direction


def test_a_cosine_is_that_with_the_mean_direction_of_the_others():
    replies = thetas(theta(2, 0, 0), theta(0, 1e30, 0), theta(-7, 0, 0, var=9), theta(0, 0, 0))
    norms = {reply.device: step_norms(reply.theta, SENT)[0] for reply in replies}
    found = cosines(replies, SENT, norms)
    assert found.keys() == {0, 1, 2}  # the fourth left its weights as they were
    assert found[0] == pytest.approx(-(0.5**0.5))  # (1, 0) beside (-1, 1)
    assert found[1] == 0  # beside nothing: the others' directions cancel
    assert found[2] == pytest.approx(-(0.5**0.5))
    assert cosines(replies, SENT, {0: norms[0], 1: norms[1]})[0] == pytest.approx(0)


def test_a_cosine_is_taken_where_weights_were_sent():
    sent = Theta(Mask(SPEC, {"w": [0, 1]}), np.float32([1, 1, 0, 5]))
    swapped = Theta(Mask(SPEC, {"w": [1, 2]}), np.float32([4, 100, 0, 5]))
    kept = Theta(sent.mask, np.float32([1, 3, 0, 5]))
    found = cosines([Reply(0, 1, swapped), Reply(1, 1, kept)], sent, {0: 1.0, 1: 2.0})
    assert found[0] == pytest.approx(3 / 10**0.5)  # of (-1, 3), a dropped weight goes to zero


ALIKE = [theta(2, 1, 0), theta(2, 0, 1), theta(2, -1, 0), theta(2, 0, -1)]  # of length 5 ** 0.5


@pytest.mark.parametrize(
    ("last", "named"),
    [
        (theta(-4, 0, 0), True),  # 1.8 times the median, against
        (theta(0, 4, 0), True),  # across
        (theta(4, 0, 0), False),  # long, but along
        (theta(-3, 0, 0), False),  # against, but not long: it looks honest
        (theta(-9, 0, 0), True),  # within twice the bound: not scaled, but left out
        (theta(9, 0, 0), True),  # along, and out of bounds: scaled
    ],
)
def test_a_long_step_goes_along_with_the_others(last, named):
    found, bounds = bounded(thetas(*ALIKE, last))
    assert (4 in bounds.out) == named
    along = last.vector[0] > 1
    assert bounds.leaves_out(4) == (found[4].theta is None) == (named and not along)
    assert bounds.out.keys() <= {4}


@pytest.mark.parametrize(
    ("samples", "last", "named"),
    [
        (4, theta(-(5**0.5), 0, 0), True),  # as long as the others, of four times the samples
        (4, theta(5**0.5, 0, 0), False),  # along
        (4, theta(0, 5**0.5, 0), False),  # across: an honest device may have other data
        (2, theta(-2, 0, 0), False),  # against, but less than twice the others' weight
    ],
)
def test_a_heavy_step_does_not_go_against_the_others(samples, last, named):
    replies = [*thetas(*ALIKE), Reply(4, samples, last)]
    found, bounds = bounded(replies)
    assert (4 in bounds.named) == named == (found[4].theta is None)
    few = bounded([*replies[1:]])[1]  # of four devices two may be alike by chance
    assert few.named == {}


def test_a_step_against_the_others_is_named_with_its_length():
    bounds = bounded(thetas(*ALIKE, theta(-(20**0.5), 0, 0)))[1]
    assert bounds.named == {4: "update 2 times the median norm and not along with the others"}
    assert bounds.out[4].keys() == {DIRECTION}


def test_where_devices_do_not_agree_none_is_against_them():
    apart = [theta(1, 0, 0), theta(-1, 0, 0), theta(0, 1, 0), theta(0, -1, 0)]
    assert bounded(thetas(*apart, theta(0, 0, 2)))[1].out == {}


def test_directions_are_not_looked_at_where_all_steps_are_usual(monkeypatch):
    monkeypatch.setattr("fedtiny.federation.bounds.cosines", None)  # calling it would fail
    assert bounded(thetas(*ALIKE, theta(-3, 0, 0)))[1].out == {}


def test_of_a_device_whose_step_is_left_out_nothing_counts():
    sent = Theta(Mask(SPEC, {"w": [0, 1]}), np.float32([1, 1, 0, 5]))
    request = Request("train", "fedtiny", 0, (train(1), top_gradients({"w": 1})), sent)

    def reply(device, step, slope, loss):
        own = Theta(sent.mask, sent.vector + np.float32([*step, 0, 1]))
        gradients = {"w": SparseVector(3, np.int32([2]), np.float32([slope]))}
        return Reply(device, 1, own, gradients, metrics={"loss": loss})

    honest = [reply(k, step, 1, 2.0) for k, step in enumerate([(2, 1), (2, -1)] * 2)]
    outcome = folded([*honest, reply(4, (-4, 0), 1.5, 9.0)], request=request)
    assert outcome.failed == {}
    assert outcome.answered == (0, 1, 2, 3, 4)
    assert outcome.bounded.keys() == {4}
    assert outcome.gradients["w"].values.tolist() == [1]
    assert outcome.metrics["loss"] == 2
    assert outcome.theta.version == folded(honest, request=request).theta.version


def test_a_server_with_much_memory_holds_more_replies_in_it(monkeypatch):
    for free, held in ((None, 2**28), (2**30, 2**28), (2**36, 2**32)):
        monkeypatch.setattr(held_replies, "free_memory", lambda free=free: free)
        assert held_replies.in_memory() == held
