"""FedRTS: what it counts, what it draws, and among which links."""

import numpy as np
import pytest

from fedtiny import methods
from fedtiny.federation.messages import Reply, top_gradients, train
from fedtiny.federation.rounds import play_round, prepare
from fedtiny.federation.server import Server
from fedtiny.methods.fedrts import POSTERIOR
from fedtiny.models.param_spec import ParamSpec
from fedtiny.randomness import generator
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.top import largest
from fedtiny.sparse.vector import all_alike

from ..devices.tiny import lab, settings
from ..federation.fakes import FakeTransport

SPEC = ParamSpec({"a": (10,)}, {"bias": (1,)}, (("a",),), (), "first", "last")
MASK = Mask(SPEC, {"a": [0, 1, 2, 3]})
WEIGHTS = ([4, 3, 2, 1], [1, 2, 3, 4], [5, 0, 1, 2])
SAMPLES = (1, 2, 3)
VOTES = ([5], [5], [7])


def devices(device, request):
    """Three of them, with weights of their own and a vote each where one is asked for."""
    values = np.array([*WEIGHTS[device], 0], np.float32)
    asked = any(verb.name == "top_gradients" for verb in request.program)
    votes = {"a": all_alike(10, np.array(VOTES[device], np.int32))} if asked else {}
    return Reply(device, SAMPLES[device], Theta(request.theta.mask, values), votes)


def server_of(round=0, **pruning):
    """A server in mid-run, whose K is 4; a is 1 in round 0 and 0 in round 1."""
    pruning = {"delta_r": 2, "r_stop": 2} | pruning
    config = settings(method="fedrts", density=0.4, fleet={"devices": 3}, pruning=pruning)
    theta = Theta(MASK, np.zeros(length(MASK), np.float32))
    server = Server(config, FakeTransport(3, devices), theta, round=round, coarse_pruned=True)
    server.arrays[POSTERIOR + "a"] = np.ones((2, 10), np.float32)
    return server, methods.create(config)


def test_devices_send_positions_alone_in_adjusting_rounds():
    server, method = server_of()
    assert method.score(server) == (top_gradients({"a": 1}, 0.0, votes=True),)
    assert method.train_locally(server) == (train(1),)
    server.round = 1
    assert method.score(server) == ()


def test_kept_weights_are_counted_by_the_mean_and_by_the_devices():
    """Round 0, K - a = 3. Largest on the devices: 0 1 2, 1 2 3, 0 2 3, so the shares are 4, 3, 6
    and 5 sixths; of the mean (21, 7, 11 and 15 sixths): 0 2 3."""
    server, method = server_of()
    play_round(server, method)
    x = np.array([0.5 + 4 / 12, 3 / 12, 1, 0.5 + 5 / 12])
    alpha, beta = server.arrays[POSTERIOR + "a"]
    np.testing.assert_allclose(alpha[:4], 1 + 3 * x, rtol=1e-6)
    np.testing.assert_allclose(beta[:4], 1 + 3 * (1 - x), rtol=1e-6)


def test_pruned_weights_are_counted_by_votes_in_adjusting_rounds():
    """Links 5 and 7 have half of the votes each, so X is 1/2 there and 1/4 elsewhere."""
    server, method = server_of()
    play_round(server, method)
    alpha, beta = server.arrays[POSTERIOR + "a"]
    np.testing.assert_allclose(alpha[[5, 7]], 1 + 3 / 2)
    np.testing.assert_allclose(alpha[[4, 6, 8, 9]], 1 + 3 / 4)
    np.testing.assert_allclose(beta[[4, 6, 8, 9]], 1 + 9 / 4)


def test_a_round_between_counts_kept_weights_only_and_leaves_the_mask():
    """Round 1 of delta_r 4 and r_stop 8 swaps nothing; K - a is 3 still."""
    server, method = server_of(round=1, delta_r=4, r_stop=8)
    play_round(server, method)
    alpha, beta = server.arrays[POSTERIOR + "a"]
    assert (alpha[4:] == 1).all()
    assert (beta[4:] == 1).all()
    np.testing.assert_allclose(alpha[0] + beta[0], 2 + 3)
    assert server.theta.mask == MASK


def test_nothing_is_counted_after_the_last_adjustment():
    server, method = server_of(round=3)
    play_round(server, method)
    assert (server.arrays[POSTERIOR + "a"] == 1).all()
    assert server.theta.mask == MASK


@pytest.mark.parametrize(
    ("draw", "links"), [("all", list(range(10))), ("voted", [0, 1, 2, 3, 5, 7])]
)
def test_the_largest_draws_of_all_posteriors_are_the_new_mask(draw, links):
    server, method = server_of(draw=draw)
    play_round(server, method)
    alpha, beta = server.arrays[POSTERIOR + "a"][:, links]
    drawn = generator(0, "thompson sampling", round=0).beta(alpha, beta)
    expected = sorted(np.array(links)[np.argsort(-drawn)[:4]].tolist())
    assert server.theta.mask.indices("a").tolist() == expected
    stayed = dict(zip(range(4), np.array([21, 7, 11, 15]) / 6, strict=True))
    values = [stayed.get(i, 0) for i in expected]
    np.testing.assert_allclose(server.theta.kept("a"), values, rtol=1e-6)


@pytest.mark.parametrize(("density", "chosen"), [(0.05, "all"), (0.049, "voted")])
def test_by_default_only_kept_and_voted_links_are_drawn_below_a_twentieth(density, chosen):
    config = settings(method="fedrts", density=density)
    links = methods.create(config)._links(MASK, "a", all_alike(10, np.array([8], np.int32)))
    assert links.tolist() == {"all": list(range(10)), "voted": [0, 1, 2, 3, 8]}[chosen]


LINKS = 200_000
LARGE = ParamSpec({"a": (LINKS,)}, {"bias": (1,)}, (("a",),), (), "first", "last")


def share_of_voted(density, draw):
    """The share of what the first adjustment grows that has any device's vote.

    Gradients of ten devices are correlated by 0.3, with tails as of Student's t.
    """
    common = np.random.default_rng(0).standard_t(5, LINKS)
    voted = set()

    def devices(device, request):
        own, mask = np.random.default_rng(device + 1), request.theta.mask
        gradient = 0.3**0.5 * common + 0.7**0.5 * own.normal(size=LINKS)
        pruned = np.flatnonzero(~mask.array("a")).astype(np.int32)
        (verb,) = (verb for verb in request.program if verb.name == "top_gradients")
        found = pruned[largest(gradient[pruned], verb.counts["a"])]
        voted.update(found.tolist())
        noise = 0.3 * own.normal(size=length(mask)).astype(np.float32)
        theta = Theta(mask, request.theta.vector + noise)
        return Reply(device, 1, theta, {"a": all_alike(LINKS, found)})

    pruning = {"draw": draw, "delta_r": 10, "r_stop": 100}
    config = settings(method="fedrts", density=density, pruning=pruning, fleet={"devices": 10})
    dense = np.random.default_rng(1).normal(size=LINKS + 1).astype(np.float32)
    theta = Theta(Mask.full(LARGE), dense)
    server, method = Server(config, FakeTransport(10, devices), theta), methods.create(config)
    prepare(server, method)
    first = server.theta.mask.indices("a")
    play_round(server, method)
    grown = np.setdiff1d(server.theta.mask.indices("a"), first)
    assert len(grown) > 0.2 * len(first)
    return np.isin(grown, list(voted)).mean()


def test_the_published_draw_grows_links_without_a_vote_at_low_density():
    shares = [share_of_voted(density, "all") for density in (0.1, 0.01, 0.001)]
    np.testing.assert_allclose(shares, [0.49, 0.18, 0.17], atol=0.02)


def test_the_draw_among_voted_links_grows_no_other_at_a_hundredth():
    assert share_of_voted(0.01, "auto") == share_of_voted(0.01, "voted") == 1


def test_a_real_fleet_votes_and_its_masks_move():
    bench = lab(settings(method="fedrts", pruning={"delta_r": 1, "r_stop": 4, "draw": "voted"}))
    prepare(bench.server, bench.method)
    first = bench.server.theta.mask
    result = play_round(bench.server, bench.method)
    gradients = result.outcome.gradients
    assert {layer: len(change.grown) for layer, change in result.changes.items()}
    for layer, change in result.changes.items():
        assert np.isin(change.grown, gradients[layer].indices).all()
        assert ((gradients[layer].values > 0) & (gradients[layer].values <= 1)).all()
    assert bench.server.theta.mask.counts == first.counts
