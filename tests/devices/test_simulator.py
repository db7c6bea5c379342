"""The simulator: what crosses the transport, its cost, who is missing, what it remembers."""

import json
import weakref
from functools import cache

import numpy as np
import pytest
from torch import nn

from fedtiny.devices.executors import SerialExecutor
from fedtiny.devices.simulator import Simulator
from fedtiny.federation import held_replies
from fedtiny.federation.messages import Request, Verb, evaluate, train
from fedtiny.federation.rounds import federate
from fedtiny.federation.transport import ABSENT, STRAGGLER
from fedtiny.federation.wire import NOTHING_KNOWN, Known, request_size
from fedtiny.sparse.mean import WeightedMean
from fedtiny.sparse.theta import Theta

from .tiny import lab, settings


def history(wire, rounds=5, **changes):
    """A whole run and what came of each round."""
    bench = lab(settings(fleet={"devices": 3, "wire": wire}, **changes))
    return bench, list(federate(bench.server, bench.method, rounds))


def request(theta, *program, round=0, action="train"):
    return Request(action, "fedtiny", round, program or (train(1),), theta)


def asked(bench, devices, theta=None, **rest):
    return bench.transport.ask(devices, request(theta or bench.theta(), **rest), "mean")


# What crosses the transport


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"selection": {"kind": "vanilla"}, "pruning": {"granularity": "entire"}},
        {"selection": {"variance": "pooled"}, "pruning": {"granularity": "layer"}},
        {"method": "fedavg"},
    ],
)
def test_counting_and_encoding_give_the_same_bytes_and_the_same_bits(changes):
    counted, results = history("count", **changes)
    encoded, twins = history("encode", **changes)
    assert encoded.server.theta.version == counted.server.theta.version
    assert encoded.server.memory == counted.server.memory
    assert encoded.server.traffic == counted.server.traffic
    for one, other in zip(results, twins, strict=True):
        assert one.outcome.traffic == other.outcome.traffic
        assert one.outcome.theta.version == other.outcome.theta.version
        assert one.outcome.metrics == other.outcome.metrics
        assert one.outcome.by_device == other.outcome.by_device
    swapped = sum(len(change) for result in results for change in result.changes.values())
    assert (swapped > 0) == (counted.method.name == "fedtiny")


@pytest.mark.parametrize("wire", ["count", "encode"])
def test_a_mask_is_sent_only_when_it_changed(wire):
    # Round 0 adjusts; a is zero at r_stop, so that no later round does.
    bench, results = history(wire, pruning={"delta_r": 2, "r_stop": 2})
    assert [bool(result.changes) for result in results] == [True] + 4 * [False]
    down = [result.outcome.traffic.down for result in results]
    theta = bench.server.theta
    whole = request_size(request(theta, round=1), NOTHING_KNOWN)
    values = request_size(request(theta, round=1), Known(mask=theta.mask.version))
    assert down[1:] == [3 * whole] + 3 * [3 * values]
    assert whole > values


def test_a_reply_costs_its_values_and_no_mask():
    bench = lab()
    theta = bench.theta()
    up = asked(bench, [0], theta).traffic.up
    assert 4 * len(theta.vector) < up < 4 * len(theta.vector) + 120


def test_the_same_theta_is_not_sent_twice():
    bench = lab()
    theta = bench.theta()
    first, second = (asked(bench, [0], theta).traffic.down for _ in range(2))
    assert first > 4 * len(theta.vector)
    assert second < 120


def test_each_device_has_its_own_memory_of_what_it_holds():
    bench = lab()
    theta = bench.theta()
    first = asked(bench, [0], theta).traffic.down
    assert asked(bench, [1], theta).traffic.down == first
    assert asked(bench, [0, 1, 2], theta).traffic.down > first
    assert asked(bench, [0, 1, 2], theta).traffic.down < 3 * 120


# The mean of the replies


def mean_by_hand(bench, theta, devices, **rest):
    """Each device asked alone, in a fleet that never fails."""
    mean = WeightedMean()
    for device in devices:
        healthy = lab(settings(seed=bench.config.seed), sizes=sizes_of(bench))
        reply = asked(healthy, [device], theta, **rest).theta
        mean.add({"theta": reply.vector}, weight=len(bench.shards[device]))
    return Theta(theta.mask, mean.result()["theta"])


def sizes_of(bench):
    return tuple(len(shard) for shard in bench.shards)


def test_the_outcome_is_the_mean_weighted_by_samples():
    bench = lab()
    theta = bench.theta()
    outcome = asked(bench, [0, 1, 2], theta)
    assert outcome.answered == (0, 1, 2)
    assert outcome.failed == {}
    assert outcome.theta.version == mean_by_hand(bench, theta, [0, 1, 2]).version
    losses = [outcome.by_device[k]["loss"] for k in range(3)]
    expected = np.average(losses, weights=sizes_of(bench))
    assert outcome.metrics["loss"] == pytest.approx(expected, rel=1e-6)


def test_the_order_in_which_devices_are_named_does_not_matter():
    one, other = lab(), lab()
    theta = one.theta()
    first, second = asked(one, [0, 1, 2], theta), asked(other, [2, 0, 1], theta)
    assert second.answered == (0, 1, 2)
    assert first.theta.version == second.theta.version
    assert first.traffic == second.traffic


SIZES = (8, 9, 10, 11, 12, 13)


def flaky(**fleet):
    return lab(settings(fleet={"devices": 6, **fleet}), sizes=SIZES)


@pytest.mark.parametrize(
    ("fleet", "reason"), [({"fail_rate": 0.5}, ABSENT), ({"straggler_rate": 0.5}, STRAGGLER)]
)
def test_the_mean_is_over_those_that_answered(fleet, reason):
    bench = flaky(**fleet)
    theta = bench.theta()
    outcome = asked(bench, range(6), theta, round=2)
    assert 0 < len(outcome.answered) < 6
    assert outcome.failed == {k: reason for k in range(6) if k not in outcome.answered}
    expected = mean_by_hand(bench, theta, outcome.answered, round=2)
    assert outcome.theta.version == expected.version


def test_the_absent_cost_nothing_and_the_late_only_their_download():
    healthy = lab(sizes=SIZES)
    theta = healthy.theta()
    one = asked(healthy, [0], theta, round=2).traffic
    for rate, downloads in (("fail_rate", "answered"), ("straggler_rate", "all")):
        outcome = asked(flaky(**{rate: 0.5}), range(6), theta, round=2)
        answered = len(outcome.answered)
        assert 0 < answered < 6
        assert outcome.traffic.up == pytest.approx(answered * one.up, abs=6 * 12)  # loss digits
        assert outcome.traffic.down == one.down * (answered if downloads == "answered" else 6)


def test_a_late_device_holds_the_model_and_an_absent_one_does_not():
    for rate, reason in (("fail_rate", ABSENT), ("straggler_rate", STRAGGLER)):
        bench = flaky(**{rate: 0.5})
        theta = bench.theta()
        failed = asked(bench, range(6), theta, round=2).failed
        for device in range(6):
            held = bench.transport.links[device].known.theta == theta.version
            assert held == (failed.get(device) != ABSENT)
        assert set(failed.values()) == {reason}


def test_trouble_is_drawn_anew_each_round_and_fixed_by_the_seed():
    def missing(seed):
        bench = lab(settings(seed=seed, fleet={"devices": 6, "fail_rate": 0.4}), sizes=SIZES)
        theta = bench.theta()
        rounds = [request(theta, evaluate(), round=round) for round in range(5)]
        return [tuple(bench.transport.ask(range(6), order, "mean").failed) for order in rounds]

    assert missing(0) == missing(0) != missing(1)
    assert len(set(missing(0))) > 1


def test_a_rate_is_the_share_of_devices_that_are_missing():
    config = settings(fleet={"devices": 3, "fail_rate": 0.2, "straggler_rate": 0.25})
    bench = lab(config)
    theta = bench.theta()
    drawn = [
        bench.transport._trouble(k, request(theta, round=r)) for k in range(3) for r in range(700)
    ]
    assert drawn.count(ABSENT) / len(drawn) == pytest.approx(0.2, abs=0.03)
    assert drawn.count(STRAGGLER) / len(drawn) == pytest.approx(0.8 * 0.25, abs=0.03)


def test_a_device_that_cannot_do_its_work_is_named_with_its_reason():
    bench = lab(sizes=(8, 1, 9))
    theta = bench.theta()
    outcome = asked(bench, [0, 1, 2], theta)
    assert outcome.answered == (0, 2)
    assert outcome.failed.keys() == {1}
    assert "at least two samples" in outcome.failed[1]
    assert outcome.theta.version == mean_by_hand(bench, theta, [0, 2]).version


def test_everyone_may_fail():
    bench = lab()
    request_ = request(bench.theta(), Verb("somersault"))
    outcome = bench.transport.ask([0, 1], request_, "mean")
    assert outcome.answered == ()
    assert outcome.theta is None
    assert "cannot 'somersault'" in outcome.failed[0]
    assert outcome.traffic.up == 0 < outcome.traffic.down


# Stopping and going on


@cache
def straight_through(wire):
    return history(wire, **EVERY_OTHER_ROUND)


@cache
def gone_on(wire, stop):
    """A run that stopped after so many rounds and went on in a new process."""
    config = settings(fleet={"devices": 3, "wire": wire}, **EVERY_OTHER_ROUND)
    first, second = lab(config), lab(config)
    list(federate(first.server, first.method, stop))
    second.transport.restore(json.loads(json.dumps(first.transport.state())), first.server.theta)
    second.server.theta, second.server.round = first.server.theta, stop
    second.server.coarse_pruned = True
    return second, list(federate(second.server, second.method, 5))


EVERY_OTHER_ROUND = {"pruning": {"delta_r": 2, "r_stop": 8}}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [2, 3])
@pytest.mark.parametrize("wire", ["count", "encode"])
def test_a_restored_simulator_goes_on_to_the_same_bits(wire, stop):
    straight, _ = straight_through(wire)
    broken, _ = gone_on(wire, stop)
    assert broken.server.theta.version == straight.server.theta.version
    assert broken.transport.state() == straight.transport.state()


@pytest.mark.parametrize("stop", [2, 3])
@pytest.mark.parametrize("wire", ["count", "encode"])
def test_a_restored_simulator_counts_the_same_bytes(wire, stop):
    _, straight = straight_through(wire)
    _, going_on = gone_on(wire, stop)
    assert [r.outcome.traffic for r in going_on] == [r.outcome.traffic for r in straight[stop:]]


# Memory


class Watching(SerialExecutor):
    """Counts, whenever a device starts, the replies that are still held."""

    def __init__(self, engine):
        super().__init__(engine, seed=0)
        self.replies, self.held = [], []

    def answers(self, tasks):
        for task in tasks:
            self.held.append(sum(reply() is not None for reply in self.replies))
            (reply,) = super().answers([task])
            self.replies.append(weakref.ref(reply.theta))
            yield reply
            del reply


@pytest.mark.parametrize("devices", [3, 30])
def test_memory_does_not_grow_with_the_devices(devices, monkeypatch):
    monkeypatch.setattr(held_replies, "in_memory", lambda: 0)
    bench, made, plain = lab(sizes=(8,) * devices), [], nn.Module.__init__
    executor = Watching(bench.engine)
    monkeypatch.setattr(
        nn.Module, "__init__", lambda self, *rest: made.append(self) or plain(self, *rest)
    )
    transport = Simulator(executor, bench.shards, bench.config)
    outcome = transport.ask(range(devices), request(bench.theta()), "mean")
    assert len(outcome.answered) == len(executor.held) == devices
    assert max(executor.held) == 1  # the last one, while the next device works; the others wait
    assert made == []  # one model plays them all
