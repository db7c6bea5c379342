"""FedAvgM, FedAdam and FedYogi on a model of three weights, by hand; state follows the mask."""

import numpy as np
import pytest

from fedtiny.federation import server_optimizer
from fedtiny.federation.messages import Reply
from fedtiny.federation.rounds import federate
from fedtiny.federation.server_optimizer import FIRST, SECOND
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from .fakes import FULL, FakeTransport, Method, server_of

THREE = ParamSpec(
    prunable={"a.weight": (3,)},
    dense={"n.running_mean": (1,), "n.running_var": (1,), "head.bias": (1,)},
    blocks=(("a.weight",),),
    norms=("n",),
    input_layer="first",
    output_layer="head",
)
ALL = Mask.full(THREE)
FIRST_TWO, LAST_TWO = Mask(THREE, {"a.weight": [0, 1]}), Mask(THREE, {"a.weight": [1, 2]})


def theta(*values, mask=ALL):
    """Weights, then a mean, a variance and a bias."""
    return Theta(mask, np.array(values, np.float32))


def server(optimizer, start, **more):
    return server_of(FakeTransport(), theta=start, server={"optimizer": optimizer, **more})


def stepped(given, *means):
    """Where some rounds lead whose means lie so far from the model."""
    for mean in means:
        given.theta = server_optimizer.step(given, mean)
    return given.theta.vector


def test_fedavg_is_the_mean_itself():
    mean = theta(1, 2, 3, 4, 5, 6)
    assert server_optimizer.step(server("fedavg", theta(*[0] * 6)), mean) is mean


def test_fedavg_with_a_rate_goes_part_of_the_way_but_takes_statistics_as_they_are():
    given = server("fedavg", theta(0, 2, 4, 0, 1, 8), lr=0.5)
    assert stepped(given, theta(2, 2, 0, 4, 5, 0)).tolist() == [1, 2, 2, 4, 5, 4]
    assert not given.arrays


def test_fedavgm_adds_up_momentum():
    """v1 = d1; v2 = 0.9 d1 + d2."""
    given = server("fedavgm", theta(0, 0, 0, 0, 1, 0))
    one = theta(1, 2, 3, 7, 8, 4)
    assert stepped(given, one).tolist() == [1, 2, 3, 7, 8, 4]
    two = theta(2, 2, 3, 9, 9, 4)  # d2 = 1, 0, 0 and 0
    np.testing.assert_allclose(stepped(given, two), [2.9, 3.8, 5.7, 9, 9, 7.6], rtol=1e-6)


def test_fedadam_divides_by_the_root_of_the_second_moment():
    """m = 0.1 d, v = 0.01 d^2, step 0.1 x 0.1 d / (0.1 |d| + tau) with tau 0.1."""
    given = server("fedadam", theta(0, 0, 0, 0, 1, 0), lr=0.1, tau=0.1)
    moved = stepped(given, theta(1, -4, 0, 7, 8, 9))
    expected = [0.01 / 0.2, -0.04 / 0.5, 0, 7, 8, 0.09 / 1.0]
    np.testing.assert_allclose(moved, expected, rtol=1e-6)
    np.testing.assert_allclose(given.arrays[FIRST][:3], [0.1, -0.4, 0], rtol=1e-6)
    np.testing.assert_allclose(given.arrays[SECOND][:3], [0.01, 0.16, 0], rtol=1e-6)
    before = given.theta.vector.copy()
    moved = stepped(given, theta(*(before + np.array([1, 0, 0, 0, 0, 0], np.float32))))
    first, second = 0.9 * 0.1 + 0.1 * 1, 0.99 * 0.01 + 0.01 * 1
    assert moved[0] == pytest.approx(before[0] + 0.1 * first / (second**0.5 + 0.1), rel=1e-5)
    assert moved[1] == pytest.approx(before[1] - 0.1 * 0.36 / ((0.99 * 0.16) ** 0.5 + 0.1), 1e-5)


def test_fedyogi_moves_the_second_moment_by_no_more_than_the_square():
    """v2 = v1 - 0.01 d^2 sign(v1 - d^2): up where d^2 is above, down where it is below."""
    given = server("fedyogi", theta(0, 0, 0, 0, 1, 0), lr=0.1, tau=0.1)
    stepped(given, theta(1, 4, 2, 0, 1, 0))
    np.testing.assert_allclose(given.arrays[SECOND][:3], [0.01, 0.16, 0.04], rtol=1e-6)
    before = given.theta.vector.copy()
    delta = np.array([1, 0.1, 0, 0, 0, 0], np.float32)
    moved = stepped(given, theta(*(before + delta)))
    second = [0.01 + 0.01, 0.16 - 0.01 * 0.01, 0.04]
    np.testing.assert_allclose(given.arrays[SECOND][:3], second, rtol=1e-4)
    first = 0.9 * np.array([0.1, 0.4, 0.2]) + 0.1 * delta[:3]
    expected = before[:3] + 0.1 * first / (np.sqrt(second) + 0.1)
    np.testing.assert_allclose(moved[:3], expected, rtol=1e-5)


def test_state_follows_the_mask_and_a_new_weight_begins_with_none():
    given = server("fedavgm", theta(0, 0, 0, 1, 0, mask=FIRST_TWO))
    stepped(given, theta(1, 2, 0, 1, 3, mask=FIRST_TWO))
    assert given.arrays[FIRST].tolist() == [1, 2, 0, 0, 3]
    server_optimizer.follow(given, FIRST_TWO, LAST_TWO)
    assert given.arrays[FIRST].tolist() == [2, 0, 0, 0, 3]


def test_a_mean_under_a_mask_of_its_own_starts_new_weights_at_zero():
    """As FedDST has it: weight 0 is gone, weight 2 is grown and moves from zero."""
    given = server("fedavgm", theta(1, 1, 0, 1, 0, mask=FIRST_TWO))
    stepped(given, theta(2, 2, 0, 1, 0, mask=FIRST_TWO))
    moved = stepped(given, theta(2, 5, 0, 1, 0, mask=LAST_TWO))
    np.testing.assert_allclose(moved[:2], [2 + 0.9, 5], rtol=1e-6)
    np.testing.assert_allclose(given.arrays[FIRST][:2], [0.9, 5], rtol=1e-6)


@pytest.mark.parametrize("optimizer", ["fedavgm", "fedadam", "fedyogi"])
def test_state_is_under_the_mask_of_the_model_after_every_round(optimizer):
    class Halving(Method):
        name = "halving"

        def density_limit(self, round):
            return 1.0

        def adjust(self, server, outcome):
            kept = {n: server.theta.mask.indices(n)[::2] for n in server.theta.mask}
            server.theta = server.theta.remasked(Mask(server.param_spec, kept))

    given = server_of(
        FakeTransport(answer=lambda k, r: Reply(k, 1, Theta(r.theta.mask, r.theta.vector + 1))),
        theta=Theta(FULL, np.ones(FULL.count + FULL.param_spec.dense_count, np.float32)),
        server={"optimizer": optimizer},
    )
    for _ in federate(given, Halving(given.config), 3):
        assert len(given.arrays[FIRST]) == len(given.theta.vector)
    assert given.theta.mask.count == 3
