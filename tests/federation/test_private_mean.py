"""The mean under differential privacy, with numbers that can be checked by hand."""

from math import inf, sqrt

import numpy as np
import pytest

from fedtiny.config import from_dict
from fedtiny.errors import ConfigError
from fedtiny.federation import private
from fedtiny.federation.messages import Reply, Request, pool_arrays
from fedtiny.federation.private_mean import LARGEST_LOSS, LOSS_WEIGHT, PrivateMean
from fedtiny.federation.reply_validator import Arrived, ReplyValidator, collect
from fedtiny.federation.server import Server
from fedtiny.federation.transport import ABSENT, Traffic
from fedtiny.federation.verbs import (
    BnStatistics,
    Evaluate,
    Losses,
    SharedGradients,
    TopGradients,
    Train,
)
from fedtiny.models.param_spec import ParamSpec
from fedtiny.privacy.mechanism import Mechanism
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from .fakes import FakeTransport

SPEC = ParamSpec(
    prunable={"w": (6,)},
    dense={"n.running_mean": (1,), "n.running_var": (1,)},
    blocks=(("w",),),
    norms=("n",),
    input_layer="i",
    output_layer="o",
)
MASK = Mask(SPEC, {"w": [1, 4]})


def theta(*values):
    return Theta(MASK, np.array(values, np.float32))


SENT = theta(1, 2, 0, 4)


TRAIN = (Train(1),)


def mean(replies, clip, program=TRAIN, noise=0.0, asked=None, arrays=None, **other):
    own = {"seed": 0, "round": 0, "number": 0, **other}
    mechanism = Mechanism(clip, noise, asked or len(replies), **own)
    found = PrivateMean(Request("train", "m", 0, program, SENT, arrays or {}), mechanism)
    for reply in replies:
        found.add(reply)
    return found.outcome({}, Traffic())


def trained(device, *values, samples=1, loss=0.0):
    return Reply(device, samples, theta(*values), metrics={"loss": loss})


def test_a_step_is_scaled_down_to_the_clip():
    far, near = trained(0, 4, 6, 0, 4), trained(1, 1, 3, 0, 4)  # steps (3, 4) and (0, 1)
    assert mean([far, near], clip=5).theta.vector.tolist() == [2.5, 4.5, 0, 4]
    assert mean([far, near], clip=2.5).theta.vector.tolist() == [1.75, 3.5, 0, 4]


def test_statistics_are_in_the_same_vector():
    reply = trained(0, 1, 2, 3, 8)  # a step of (0, 0, 3, 4)
    assert mean([reply], clip=1).theta.vector == pytest.approx([1, 2, 0.6, 4.8])


def test_so_is_the_loss_which_counts_a_tenth_of_the_clip():
    reply = trained(0, 1, 2, 3, 4, loss=4.0)  # a step of 3, and 0.1 * 3 * 4 = 1.2
    outcome = mean([reply], clip=3)
    factor = 3 / sqrt(3**2 + 1.2**2)
    assert outcome.metrics["loss"] == pytest.approx(4 * factor)
    assert outcome.theta.vector[2] == pytest.approx(3 * factor)
    still = mean([trained(0, *SENT.vector, loss=1e9)], clip=3)
    assert still.metrics["loss"] == LARGEST_LOSS
    assert LOSS_WEIGHT * LARGEST_LOSS < 1


def test_every_device_counts_the_same_whatever_it_claims():
    replies = [trained(0, 1, 2, 0, 4, samples=1), trained(1, 3, 2, 0, 4, samples=1000)]
    assert mean(replies, clip=9).theta.vector.tolist() == [2, 2, 0, 4]


def test_who_does_not_answer_counts_as_no_step():
    replies = [trained(0, 5, 2, 0, 4, loss=2.0)]
    outcome = mean(replies, clip=9, asked=4)
    assert outcome.theta.vector.tolist() == [2, 2, 0, 4]
    assert outcome.metrics["loss"] == 0.5
    nobody = mean([], clip=9, asked=4)
    assert nobody.theta.vector.tolist() == SENT.vector.tolist()
    assert nobody.answered == ()


def test_more_than_expected_may_answer():
    replies = [trained(k, 5, 2, 0, 4) for k in range(3)]
    assert mean(replies, clip=9, asked=2.0).theta.vector.tolist() == [7, 2, 0, 4]


def test_without_a_clip_and_noise_it_is_the_plain_mean_to_the_last_bit():
    draw = np.random.default_rng(0)
    vectors = np.abs(draw.normal(0, 1, (7, 4)))
    replies = [trained(k, *v, samples=32, loss=float(k)) for k, v in enumerate(vectors)]
    request = Request("train", "m", 0, (Train(1),), SENT)
    config = from_dict({"robustness": {"bound": 0.0}})
    arrived = [Arrived(reply.device, 32, reply, 0) for reply in replies]
    plain = collect(arrived, ReplyValidator(request, "mean", config), {}, Traffic(), 0)
    private_mean = mean(replies, clip=inf)
    assert (private_mean.theta.vector == plain.theta.vector).all()
    assert private_mean.metrics == pytest.approx(plain.metrics)


def test_candidates_are_told_apart_by_losses_less_their_mean():
    arrays = pool_arrays(np.array([[2], [2]], np.int32))
    replies = [
        Reply(0, 1, arrays={"losses": np.array([1.0, 2.0], np.float32)}),
        Reply(1, 1, arrays={"losses": np.array([1.0, 1e38], np.float32)}),
    ]
    found = mean(replies, clip=10, program=(Losses(),), arrays=arrays).arrays["losses"]
    clipped = 2 / sqrt(8)  # of (-2, 2), whose norm may be 1
    assert found == pytest.approx([(-0.5 - clipped) / 2, (0.5 + clipped) / 2])


def test_shared_gradients_are_in_the_vector():
    program = (Train(1), SharedGradients({"w": 2}))
    gradients = {"w": np.array([3, 4], np.float32)}
    reply = Reply(0, 1, SENT, arrays=gradients, metrics={"loss": 0.0})
    assert mean([reply], clip=1, program=program).arrays["w"] == pytest.approx([0.6, 0.8])


def test_noise_is_on_every_value_and_on_no_other():
    draws = [
        mean([trained(0, *SENT.vector)], clip=2, noise=3, asked=4, number=k) for k in range(2000)
    ]
    steps = np.array([own.theta.vector for own in draws]) - SENT.vector
    assert steps[:, :3].std(axis=0) == pytest.approx([1.5] * 3, rel=0.08)
    assert steps[:, :3].mean(axis=0) == pytest.approx([0] * 3, abs=0.15)
    losses = [own.metrics["loss"] for own in draws]
    assert np.std(losses) == pytest.approx(3 * 2 / (0.2 * 4), rel=0.08)
    assert (steps[:, 3] >= -2).all()  # a variance falls by half at most
    assert (np.abs(np.corrcoef(steps[:, :3].T) - np.eye(3)) < 0.12).all()


def test_frozen_statistics_stay_and_others_get_noise():
    found = mean([trained(0, *SENT.vector)], clip=2, noise=3, frozen=True).theta.vector
    assert found[2:].tolist() == [0, 4]
    assert (found[:2] != SENT.vector[:2]).all()


def test_nobody_under_noise_is_noise():
    found = mean([], clip=2, noise=3, asked=4).theta.vector
    assert (found[:3] != SENT.vector[:3]).all()


def test_the_same_sum_has_the_same_noise_and_another_sum_another():
    one, other = trained(0, 1, 2, 0, 4), trained(0, 1.5, 2, 0, 4)
    first, again, another = (mean([r], clip=9, noise=1).theta.vector for r in (one, one, other))
    assert (first == again).all()
    assert ((another - other.theta.vector)[:3] != (first - one.theta.vector)[:3]).all()


def test_the_share_within_the_clip_is_told_only_if_it_is_asked_for():
    replies = [trained(0, 4, 6, 0, 4), trained(1, 1, 3, 0, 4)]
    assert mean(replies, clip=2).within_clip is None
    assert mean(replies, clip=2, counts_bits=True).within_clip == 0.5


def test_collecting_clips_instead_of_comparing_devices():
    """A device far out of the others' bounds is not left out: that would tell of the others."""
    replies = [trained(k, 1, 2.1, 0, 4) for k in range(4)] + [trained(4, 1, 1e6, 0, 4)]
    mechanism = Mechanism(1.0, 0.0, 5, 0, 0, 0)
    request = Request("train", "m", 0, (Train(1),), SENT, mechanism=mechanism)
    validator = ReplyValidator(request, "mean", from_dict({}))
    arrived = [Arrived(reply.device, 9, reply, 0) for reply in replies]
    outcome = collect(arrived, validator, {7: ABSENT}, Traffic(), 0)
    assert outcome.bounded == {}
    assert outcome.failed == {7: ABSENT}
    assert outcome.theta.vector == pytest.approx([1, 2 + (4 * 0.1 + 1) / 5, 0, 4])
    assert outcome.by_device == {device: {} for device in range(5)}


# The account of a server


def server(devices=10, rounds=4, **settings):
    own = {"noise_multiplier": 0.0, "clip": 1.0, **settings}
    fleet = {"devices": devices, "fraction": 0.5}
    config = from_dict({"rounds": rounds, "privacy": own, "fleet": fleet})
    found = Server(config, FakeTransport(devices), SENT)
    private.begin(found, 0)
    return found


def test_fixed_sampling_asks_a_fixed_number_and_poisson_each_for_itself():
    fixed, poisson = server(sampling="fixed"), server(100)
    assert {len(private.sampled(fixed)) for _ in range(3)} == {5}
    counts = []
    for _ in range(200):
        counts.append(len(private.sampled(poisson)))
        private.spend(poisson, mean([trained(0, *SENT.vector)], clip=1))
    assert np.mean(counts) == pytest.approx(50, abs=1.8)
    assert np.std(counts) == pytest.approx(5, rel=0.25)


def test_every_question_is_one_release():
    found = server()
    for _ in range(3):
        found.ask("train", (Train(1),))
    assert found.memory["privacy"]["releases"] == [
        {"noise_multiplier": 0.0, "sampling": "poisson", "rate": 0.5, "devices": 10, "times": 3}
    ]
    assert private.record(found) == {"epsilon": inf, "clip": 1.0}


def test_the_clip_follows_in_rounds_of_training():
    found = server(clip="adaptive", clip_start=2.0)
    private.spend(found, mean([trained(0, 9, 9, 9, 9)], clip=2, counts_bits=True))
    assert found.memory["privacy"]["clip"] == pytest.approx(2 * np.exp(0.1))
    assert private.mechanism(found, "select", (Losses(),)).counts_bits is False
    assert private.mechanism(found, "train", (Train(1),)).counts_bits is True


@pytest.mark.parametrize(
    "verb",
    [TopGradients({"w": 1}), Train(1, sum_dense_gradients=True), BnStatistics(8), Evaluate()],
)
def test_what_noise_cannot_hide_is_not_asked(verb):
    found = server()
    with pytest.raises(ConfigError, match="differential privacy does not cover"):
        found.ask("train", (verb,))
    assert found.transport.asked == []


def test_a_default_delta():
    assert private.delta(server(100)) == pytest.approx(100**-1.1)
    assert private.delta(server(delta=1e-5)) == 1e-5


def test_one_device_needs_a_delta_of_its_own():
    with pytest.raises(ConfigError, match="give a smaller one"):
        server(1)
    assert private.delta(server(1, delta=0.1)) == 0.1


def test_privacy_that_is_off_is_not_there():
    found = Server(from_dict({}), FakeTransport(), SENT)
    private.begin(found, 1)
    assert found.memory == {}
    assert private.record(found) == private.summary(found) == {}
    assert private.mechanism(found, "train", (Evaluate(),)) is None
    assert not private.is_spent(found)
