"""FedMef: marking, extrusion on the device, and what the server drops."""

from functools import partial
from math import exp

import numpy as np
import pytest

from fedtiny import methods
from fedtiny.cost import memory
from fedtiny.devices import torch_engine
from fedtiny.devices.engine import Extrusion
from fedtiny.devices.node import answer
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.messages import Reply, Request, top_gradients, train
from fedtiny.federation.rounds import play_round
from fedtiny.federation.server import Server
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.adjust import smallest_places
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

from ..cost.tiny import workload
from ..devices.tiny import lab, settings
from ..federation.fakes import FakeTransport
from ..native.test_engine import engine_of
from ..runs import tiny

SPEC = ParamSpec({"a": (12,), "b": (4,)}, {"bias": (1,)}, (("a",), ("b",)), (), "first", "last")
MASK = Mask(SPEC, {"a": [0, 1, 2, 3, 4, 5, 6], "b": [1, 2]})
RECEIVED = Theta(MASK, np.array([5, -0.1, 3, 0.2, 4, 6, 7, 1, 2, 0], np.float32))


def server_of(answer=None, round=0):
    pruning = {"delta_r": 2, "r_stop": 4}
    config = settings(method="fedmef", density=9 / 16, pruning=pruning)
    server = Server(config, FakeTransport(1, answer), RECEIVED, round=round, coarse_pruned=True)
    return server, methods.create(config)


def test_devices_extrude_in_adjusting_rounds_only():
    server, method = server_of()
    assert method.train_locally(server) == (train(1, extrude={"a": 2}),)
    assert method.score(server) == (top_gradients({"a": 2}, 0.0),)
    server.round = 1
    assert method.train_locally(server) == (train(1),)
    assert method.score(server) == ()


def test_the_smallest_weights_as_received_are_marked():
    assert smallest_places(RECEIVED, {"a": 2}).tolist() == [1, 3]
    assert smallest_places(RECEIVED, {"a": 1, "b": 1}).tolist() == [1, 7]


def grown(positions):
    def devices(device, request):
        values = np.array([5, 9, 3, 9, 0.1, 6, 7, 1, 2, 0], np.float32)  # what was marked is large
        gradient = SparseVector(12, np.array(positions, np.int32), np.ones(len(positions), "f4"))
        return Reply(device, 1, Theta(MASK, values), {"a": gradient})

    return devices


def test_the_server_drops_what_was_marked_whatever_it_has_become():
    server, method = server_of(grown([8, 10]))
    result = play_round(server, method)
    assert result.changes["a"].dropped.tolist() == [1, 3]
    assert server.theta.mask.indices("a").tolist() == [0, 2, 4, 5, 6, 8, 10]
    np.testing.assert_allclose(server.theta.kept("a"), [5, 3, 0.1, 6, 7, 0, 0], rtol=1e-6)


def test_no_more_are_dropped_than_can_be_grown():
    server, method = server_of(grown([10]))
    assert play_round(server, method).changes["a"].dropped.tolist() == [1]
    assert server.theta.mask.counts == MASK.counts


@pytest.mark.parametrize(("step", "left"), [(0, 1), (5, 10 / 15), (9, 2 / 11)])
def test_the_rate_by_hand(step, left):
    """T = 10, |w| = 2: 2 sigmoid(2) - 1 of five times the round's rate, less with every step."""
    part = left * (2 / (1 + exp(-2)) - 1) * 5
    assert Extrusion(10, highest_rate=5).rate(step, 2.0) == pytest.approx(max(1, part))
    assert Extrusion(10).rate(step, 2.0) == 1


MARKED = {"conv2.weight": 20, "hidden.weight": 3}


def one_step(bench, extrude):
    program = (train(1, extrude=extrude),)
    request = Request("train", "fedmef", 0, program, bench.theta())
    return answer(bench.engine, request, bench.shards[0], 0).theta


def test_a_step_moves_marked_weights_towards_zero():
    """SGD with rate 0.05: by 0.05 x 2 x 1e-4 of each more than without, and no other weight."""
    config = settings(method="fedmef", train={"optimizer": "sgd", "batch_size": 12})
    bench = lab(config)
    plain, extruded = one_step(bench, None), one_step(bench, MARKED)
    sent, places = bench.theta(), smallest_places(bench.theta(), MARKED)
    expected = np.zeros_like(sent.vector)
    expected[places] = -0.05 * 2e-4 * sent.vector[places]
    np.testing.assert_allclose(extruded.vector - plain.vector, expected, atol=2e-7)
    assert len(places) == 23


@pytest.mark.parametrize(("round", "highest"), [(0, 1), (1, 1), (3, 4)])
def test_the_rate_is_raised_towards_the_highest_of_the_schedule(monkeypatch, round, highest):
    given = []
    monkeypatch.setattr(
        torch_engine, "Extrusion", lambda *how: given.append(how) or Extrusion(*how)
    )
    schedule = {"lr_schedule": "steps", "lr_gamma": 0.5, "lr_warmup": 1}
    bench = lab(settings(method="fedmef", rounds=4, train=schedule))
    request = Request("train", "fedmef", round, (train(1, extrude=MARKED),), bench.theta())
    answer(bench.engine, request, bench.shards[0], 0)
    assert given == [(3, highest)]


def test_extrusion_goes_with_fedprox_and_the_schedule():
    """One step of SGD from what was received, where FedProx adds nothing: at half the rate."""
    train_config = {"optimizer": "sgd", "batch_size": 12, "lr_warmup": 1, "proximal_mu": 0.5}
    bench = lab(settings(method="fedmef", train=train_config))
    plain, extruded = one_step(bench, None), one_step(bench, MARKED)
    sent, places = bench.theta(), smallest_places(bench.theta(), MARKED)
    expected = np.zeros_like(sent.vector)
    expected[places] = -0.025 * 2e-4 * sent.vector[places]
    np.testing.assert_allclose(extruded.vector - plain.vector, expected, atol=2e-7)


def test_extrusion_empties_weights_when_it_is_strong(monkeypatch):
    monkeypatch.setattr(torch_engine, "Extrusion", partial(Extrusion, penalty=2.0))
    bench = lab(settings(method="fedmef", train={"optimizer": "sgd", "local_epochs": 4}))
    numbers = {"conv2.weight": 60}
    program = (train(4, extrude=numbers),)
    request = Request("train", "fedmef", 0, program, bench.theta())
    places = smallest_places(request.theta, numbers)
    theta = answer(bench.engine, request, bench.shards[2], 0).theta
    before, after = (np.linalg.norm(t.vector[places]) for t in (request.theta, theta))
    assert after < 0.5 * before


def test_native_devices_refuse_it():
    bench = lab(settings(method="fedmef"))
    native = engine_of(bench)
    native.load(bench.theta())
    with pytest.raises(FedTinyError, match="cannot extrude weights; use --device-backend torch"):
        native.train(bench.shards[0], bench.rng_key(), epochs=1, extruded=np.array([0]))


def test_a_run_with_native_devices_is_refused_before_it_starts(tmp_path):
    with pytest.raises(ConfigError, match="asks for what native devices cannot do"):
        tiny.train(tiny.tiny(method="fedmef", device_backend="native"), tmp_path / "run")


def test_marks_count_in_a_device_s_memory():
    assert memory.device(workload("fedmef"))["extruded"] == 4 * (48 + 1)
