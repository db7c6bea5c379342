"""A hostile device changes nothing: the model is, bit for bit, what it is without the device."""

import struct
import zlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from fedtiny.devices.executors import ForkExecutor, SerialExecutor, can_fork
from fedtiny.devices.simulator import Link, Simulator
from fedtiny.devices.workers import DONE, Worker
from fedtiny.errors import FedTinyError, ReplyError
from fedtiny.federation.messages import Reply, Verb, train
from fedtiny.federation.rounds import federate
from fedtiny.federation.transport import ABSENT
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta
from fedtiny.sparse.vector import SparseVector

from .tiny import lab, settings, tasks

HOSTILE, ROUND, ROUNDS = 1, 1, 3
NAN, INF = np.nan, np.inf
REFUSED = "reply refused: "


class Betrayed(SerialExecutor):
    """An executor in which one device lies, in one round."""

    def __init__(self, engine, lie, action, round):
        super().__init__(engine, seed=0)
        self.lie, self.action, self.round = lie, action, round

    def answers(self, tasks):
        for task, reply in zip(tasks, super().answers(tasks), strict=True):
            rng_key = (task.shard.device, task.request.action, task.request.round)
            yield self.lie(reply) if rng_key == (HOSTILE, self.action, self.round) else reply


class Absent(Simulator):
    """One device is out of reach in one round, and nobody else is ever."""

    action, round = "train", ROUND

    def _trouble(self, device, request):
        rng_key = (device, request.action, request.round)
        return ABSENT if rng_key == (HOSTILE, self.action, self.round) else ""


class Tampered(Link):
    """The bytes of one reply are changed on their way, in one round."""

    def __init__(self, change, round):
        super().__init__(encodes=True)
        self.change, self.round = change, round

    def up(self, reply, request):
        data, _ = super().up(reply, request)
        if (request.action, request.round) == ("train", self.round):
            data = self.change(data)
        return data, len(data)


def bench_of(method, wire="count"):
    config = settings(method=method, fleet={"devices": 3, "wire": wire})
    return lab(config, sizes=(12, 15, 13))


def played(bench):
    """The rounds of a run, and the parts of its state that a hostile device could spoil."""
    results = list(federate(bench.server, bench.method, ROUNDS))
    return results, (bench.server.theta.version, bench.server.theta.mask.version)


@cache
def without(method, action="train", round=ROUND):
    """The outcome of the run in which the device is out of reach instead."""
    bench = bench_of(method)
    transport = Absent(bench.transport.executor, bench.shards, bench.config)
    transport.action, transport.round = action, round
    bench.server.transport = transport
    results, state = played(bench)
    if action == "train":
        assert results[round].outcome.failed == {HOSTILE: ABSENT}
    return state


@cache
def undisturbed(method):
    return played(bench_of(method))[1]


def vector_with(value):
    def lie(reply):
        vector = reply.theta.vector.copy()
        vector[3] = value
        return replace(reply, theta=Theta(reply.theta.mask, vector))

    return lie


def with_mask(change):
    def lie(reply):
        mask = reply.theta.mask
        return replace(reply, theta=reply.theta.remasked(mask.replace(change(mask))))

    return lie


def one_more_weight(mask):
    layer = next(layer for layer in mask if not mask.is_full(layer))
    free = np.setdiff1d(np.arange(mask.param_spec.sizes[layer]), mask.indices(layer))
    return {layer: np.sort(np.append(mask.indices(layer), free[0]))}


def all_in_one_layer(mask):
    """As dense as allowed, but elsewhere."""
    sizes = mask.param_spec.sizes
    small, large = min(sizes, key=sizes.get), max(sizes, key=sizes.get)
    count = mask.kept(small) + mask.kept(large) - 1
    return {small: np.arange(1), large: np.arange(count)}


def with_gradients(change):
    def lie(reply):
        layer, first = next(iter(reply.gradients.items()))
        return replace(reply, gradients={**reply.gradients, **change(reply, layer, first)})

    return lie


def forged(vector, indices, values=None):
    """A sparse vector that its own checks would not let be made."""
    found = SparseVector(vector.size, vector.indices, vector.values)
    object.__setattr__(found, "indices", np.asarray(indices, np.int32))
    object.__setattr__(found, "values", np.ones(len(indices), "f4") if values is None else values)
    return found


def unasked_layer(reply, layer, first):
    other = next(name for name in reply.theta.mask if name not in reply.gradients)
    size = reply.theta.param_spec.sizes[other]
    return {other: SparseVector(size, np.empty(0, np.int32), np.empty(0, "f4"))}


def one_more_gradient(reply, layer, first):
    taken = np.union1d(first.indices, reply.theta.mask.indices(layer))
    free = np.setdiff1d(np.arange(first.size), taken)[:1]
    indices = np.sort(np.append(first.indices, free)).astype(np.int32)
    return {layer: SparseVector(first.size, indices, np.ones(len(indices), "f4"))}


def kept_gradient(reply, layer, first):
    return {layer: forged(first, reply.theta.mask.indices(layer)[:1])}


LIES = {
    "NaN": vector_with(NAN),
    "infinity": vector_with(INF),
    "no theta": lambda reply: replace(reply, theta=None),
    "one weight too many": with_mask(one_more_weight),
    "dense": with_mask(lambda mask: dict.fromkeys(mask)),
    "all weights in one layer": with_mask(all_in_one_layer),
    "no samples": lambda reply: replace(reply, samples=0),
    "absurd samples": lambda reply: replace(reply, samples=10**15),
    "one sample too many": lambda reply: replace(reply, samples=reply.samples + 1),
    "another's name": lambda reply: replace(reply, device=0),
    "another round": lambda reply: replace(reply, round=reply.round + 1),
    "another request": lambda reply: replace(reply, request=reply.request ^ 1),
    "a metric that is NaN": lambda reply: replace(reply, metrics={"loss": NAN}),
    "a metric that is infinite": lambda reply: replace(reply, metrics={"loss": -INF}),
    "a metric missing": lambda reply: replace(reply, metrics={}),
    "an unasked metric": lambda reply: replace(reply, metrics={**reply.metrics, "x": 1.0}),
    "an unasked array": lambda reply: replace(reply, arrays={"x": np.ones(2, "f4")}),
    "an enormous array": lambda reply: replace(reply, arrays={"x": np.ones(10**6, "f4")}),
}
GRADIENT_LIES = {
    "a gradient of NaN": with_gradients(
        lambda _, layer, first: {layer: forged(first, first.indices, first.values * NAN)}
    ),
    "an infinite gradient": with_gradients(
        lambda _, layer, first: {layer: forged(first, first.indices, first.values + INF)}
    ),
    "a gradient of a layer not asked for": with_gradients(unasked_layer),
    "one gradient too many": with_gradients(one_more_gradient),
    "the gradient of a kept weight": with_gradients(kept_gradient),
    "gradients missing": lambda reply: replace(reply, gradients={}),
}
FORGERIES = {
    "an index out of range": with_gradients(
        lambda _, layer, first: {layer: forged(first, [first.size])}
    ),
    "a negative index": with_gradients(lambda _, layer, first: {layer: forged(first, [-1])}),
    "an index twice": with_gradients(
        lambda _, layer, first: {layer: forged(first, first.indices[[0, 0]])}
    ),
}
BOTH_WAYS = [
    (method, wire, lie)
    for method in ("fedtiny", "feddst", "fedrts")
    for wire in ("count", "encode")
    for lie in (LIES | GRADIENT_LIES if method == "fedtiny" else LIES)
]


def assert_refused(bench, method, action="train", round=ROUND):
    """The device is named, the others are averaged, and the model is as without it."""
    results, state = played(bench)
    if action == "train":
        outcome = results[round].outcome
        assert outcome.answered == (0, 2)
        assert outcome.failed.keys() == {HOSTILE}
        assert outcome.failed[HOSTILE].startswith(REFUSED)
        assert all(not other.outcome.failed for other in results if other.round != round)
        assert state != undisturbed(method), "the device's honest reply would have counted"
    assert state == without(method, action, round)


@pytest.mark.parametrize(("method", "wire", "lie"), BOTH_WAYS)
def test_a_lie_changes_nothing_in_the_model(method, wire, lie):
    bench = bench_of(method, wire)
    bench.transport.executor = Betrayed(bench.engine, (LIES | GRADIENT_LIES)[lie], "train", ROUND)
    assert_refused(bench, method)


@pytest.mark.parametrize("lie", FORGERIES)
def test_forged_positions_change_nothing_in_the_model(lie):
    bench = bench_of("fedtiny")
    bench.transport.executor = Betrayed(bench.engine, FORGERIES[lie], "train", ROUND)
    assert_refused(bench, "fedtiny")


# Bytes


def sealed(content):
    return content + zlib.crc32(content).to_bytes(4, "little")


def blown_up(data):
    """A text whose length field says four gigabytes."""
    return sealed(data[:38] + struct.pack("<I", 2**32 - 1) + data[42:-4])


TAMPERINGS = {
    "oversized": lambda data: sealed(data[:-4] + bytes(10**6)),
    "truncated": lambda data: data[: len(data) // 2],
    "truncated and sealed again": lambda data: sealed(data[: len(data) // 2]),
    "empty": lambda data: b"",
    "a flipped bit": lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:],
    "a length blown up": blown_up,
    "not ours": lambda data: b"PK\x03\x04" + data[4:],
    "a request in place of a reply": lambda data: sealed(data[:5] + b"\1" + data[6:-4]),
    "negative samples": lambda data: sealed(data[:18] + struct.pack("<q", -7) + data[26:-4]),
    "noise": lambda data: np.random.default_rng(0).bytes(len(data)),
}


@pytest.mark.parametrize("method", ["fedtiny", "feddst"])
@pytest.mark.parametrize("change", TAMPERINGS)
def test_bytes_that_lie_change_nothing_in_the_model(method, change):
    bench = bench_of(method, "encode")
    bench.transport.links[HOSTILE] = Tampered(TAMPERINGS[change], ROUND)
    assert_refused(bench, method)


def test_an_oversized_reply_is_counted_and_not_read():
    bench = bench_of("fedtiny", "encode")
    bench.transport.links[HOSTILE] = Tampered(TAMPERINGS["oversized"], ROUND)
    results, _ = played(bench)
    outcome = results[ROUND].outcome
    assert "and no honest reply has more than" in outcome.failed[HOSTILE]
    assert outcome.traffic.up > 10**6 > results[0].outcome.traffic.up


# Selection


def rows_with(name, value):
    def lie(reply):
        if not any(key.endswith(name) for key in reply.arrays):
            return reply
        return replace(
            reply, arrays={k: v * value if k.endswith(name) else v for k, v in reply.arrays.items()}
        )

    return lie


def without_an_array(reply):
    return replace(reply, arrays=dict(list(reply.arrays.items())[1:]))


SELECTION_LIES = {
    "an array missing": without_an_array,
    "of another shape": lambda reply: replace(
        reply, arrays={name: array[:-1] for name, array in reply.arrays.items()}
    ),
    "of another dtype": lambda reply: replace(
        reply, arrays={name: array.astype("f8") for name, array in reply.arrays.items()}
    ),
    "samples that it has not": lambda reply: replace(reply, samples=10**6),
}


@pytest.mark.parametrize("wire", ["count", "encode"])
@pytest.mark.parametrize("lie", SELECTION_LIES)
def test_a_lie_changes_nothing_in_the_selection(lie, wire):
    bench = bench_of("fedtiny", wire)
    bench.transport.executor = Betrayed(bench.engine, SELECTION_LIES[lie], "select", 0)
    assert_refused(bench, "fedtiny", "select", 0)
    assert bench.server.failed[HOSTILE].startswith(REFUSED)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("losses", NAN, "the array losses holds NaN"),
        ("running_mean", INF, "the array bn0.running_mean holds NaN"),
        ("running_var", -1, "a variance in bn0.running_var is negative"),
    ],
)
def test_statistics_and_losses_that_cannot_be_are_refused(name, value, sentence):
    bench = bench_of("fedtiny")
    bench.transport.executor = Betrayed(
        bench.engine, rows_with(name, np.float32(value)), "select", 0
    )
    played(bench)
    assert bench.server.failed[HOSTILE].startswith(REFUSED + sentence)


def test_a_hopeless_candidate_is_no_lie(monkeypatch):
    bench = bench_of("fedtiny")
    plain = bench.engine.losses

    def losses(*given):
        found = plain(*given).copy()
        found[0], found[2] = NAN, INF
        return found

    monkeypatch.setattr(bench.engine, "losses", losses)
    played(bench)
    told = bench.server.memory["selection"]["losses"]
    assert [np.isfinite(loss) for loss in told] == [False, True, False, True]
    assert not bench.server.failed


def test_where_every_candidate_is_hopeless_the_run_stops_with_a_sentence(monkeypatch):
    bench = bench_of("fedtiny")
    monkeypatch.setattr(bench.engine, "losses", lambda *given: np.full(4, NAN, np.float32))
    with pytest.raises(FedTinyError, match="no candidate has a finite loss"):
        played(bench)


# Everyone


def test_where_everyone_is_refused_the_run_stops_and_says_why():
    bench = bench_of("fedavg")
    executor = bench.transport.executor

    class Liars(SerialExecutor):
        def answers(self, tasks):
            return (replace(reply, samples=0) for reply in executor.answers(tasks))

    bench.transport.executor = Liars(bench.engine, 0)
    with pytest.raises(FedTinyError, match=r"no device answered 'train'.*claims 0 samples"):
        played(bench)


def test_where_everyone_diverges_the_run_stops_and_says_so():
    config = settings(method="fedavg", train={"lr": 1e30}, fleet={"devices": 3})
    with pytest.raises(FedTinyError, match=r"no device answered 'train'.*training diverged"):
        played(lab(config))


def test_where_gradients_diverge_the_run_stops_with_advice(monkeypatch):
    bench = bench_of("fedtiny")
    plain = bench.engine.top_gradients

    def top_gradients(*given, **named):
        found = plain(*given, **named)
        return {layer: forged(own, own.indices, own.values * NAN) for layer, own in found.items()}

    monkeypatch.setattr(bench.engine, "top_gradients", top_gradients)
    with pytest.raises(FedTinyError, match=r"diverged .* its gradients .* lower --train\.lr"):
        played(bench)


# A third party's verb


@pytest.mark.parametrize("shape", [(2,), (4,)])
def test_of_a_third_party_s_arrays_one_of_another_shape_is_refused(shape, monkeypatch):
    bench = bench_of("fedavg")

    def shout(work):
        work.arrays["loud"] = np.ones(shape if work.shard.device == HOSTILE else (3,), "f4")

    monkeypatch.setattr(type(bench.method), "device_verbs", {"shout": shout})
    outcome = bench.server.ask("train", (train(1), Verb("shout")))
    assert outcome.answered == (0, 2)
    assert "other things" in outcome.failed[HOSTILE]
    assert outcome.arrays["loud"].tolist() == [1, 1, 1]


# Robust means


HUGE = np.float32(1e30)


def huge(reply):
    theta = Theta(reply.theta.mask, np.full_like(reply.theta.vector, HUGE))
    return replace(reply, theta=theta)


@pytest.mark.parametrize("method", ["fedtiny", "feddst"])
@pytest.mark.parametrize(
    ("robustness", "largest"),
    [
        ({"mean": "median"}, 10),
        ({"mean": "trimmed"}, 10),
        ({"clip_norm": 1.0}, 10),
        ({"mean": "trimmed", "clip_norm": 1.0}, 10),
        ({}, 10),
        ({"bound": 0.0}, None),
    ],
)
def test_one_huge_reply_of_five(method, robustness, largest):
    config = settings(
        method=method, fleet={"devices": 5}, robustness=robustness, pruning={"delta_r": 5}
    )
    bench = lab(config, sizes=(9, 10, 11, 12, 13))
    bench.transport.executor = Betrayed(bench.engine, huge, "train", ROUND)
    rounds = federate(bench.server, bench.method, ROUND + 1)
    outcome = [result.outcome for result in rounds][-1]
    assert outcome.failed == {}
    found = np.abs(bench.server.theta.vector).max()
    assert found > 1e28 if largest is None else found < largest


@pytest.mark.parametrize("method", ["fedtiny", "feddst", "prunefl", "fedsgc", "fedrts"])
@pytest.mark.parametrize("robustness", [{"mean": "median"}, {"mean": "trimmed", "clip_norm": 0.5}])
def test_whole_runs_under_robust_means_repeat_and_keep_their_density(method, robustness):
    def run(wire):
        config = settings(method=method, fleet={"devices": 3, "wire": wire}, robustness=robustness)
        bench = lab(config)
        played(bench)
        return bench.server.theta

    one, two = run("count"), run("encode")
    assert one.version == two.version
    assert one.mask.density <= 0.2
    assert np.isfinite(one.vector).all()


def test_with_a_robust_mean_the_mask_still_changes():
    bench = lab(settings(fleet={"devices": 3}, robustness={"mean": "trimmed"}))
    results, _ = played(bench)
    assert any(result.changes for result in results)


# Other crews


@pytest.mark.skipif(not can_fork(), reason="workers need fork")
def test_workers_average_robustly_to_the_same_bits():
    config = settings(fleet={"devices": 3}, robustness={"mean": "median", "clip_norm": 0.5})
    alone, many = lab(config), lab(config)
    many.transport.executor = ForkExecutor(many.engine, many.spec, many.shards, 2)
    try:
        assert played(many)[1] == played(alone)[1]
    finally:
        many.transport.close()


class Garbled:
    """A pipe at whose other end somebody babbles."""

    def recv_bytes(self, maxlength=None):
        return DONE + b"no reply at all"

    def send_bytes(self, buf, /):
        pass

    def close(self):
        pass


def test_a_child_that_babbles_is_a_failure_of_its_device():
    bench = lab()
    worker = Worker(Garbled())
    found = worker.finish(tasks(bench, train(1))[0])
    worker.close()
    assert isinstance(found, ReplyError)
    assert str(found).startswith(REFUSED)
    assert not isinstance(found, Reply)


def test_the_limit_allows_a_full_mask():
    bench = bench_of("fedavg", "encode")
    results, _ = played(bench)
    assert results[0].mask == Mask.full(bench.param_spec)
    assert not any(result.outcome.failed for result in results)
