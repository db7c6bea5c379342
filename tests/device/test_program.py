"""fedtiny-device beside a native device in Python: the same bytes, and a sentence for the rest."""

import json
import math
import re
import socket
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from tests.devices.tiny import TinyNet, lab, seeded, settings

import fedtiny.models
from fedtiny.devices.native_engine import NativeEngine
from fedtiny.devices.node import answer
from fedtiny.devices.places import over
from fedtiny.federation import messages, wire
from fedtiny.federation.messages import Request
from fedtiny.federation.wire import Known

from .link import DONE, FAILED, HELLO, MISSING, Link, resident

pytestmark = pytest.mark.slow
FAR = 1  # the device that is a program
COUNTS = {"conv1.weight": 20, "hidden.weight": 9}
POOL = np.array([[100, 200, 30], [50, 300, 20], [288, 0, 64]], np.int32)
LARGEST_PROGRAM = 2_000_000  # bytes


@pytest.fixture
def met(program, tmp_path):
    """Start the program with the data of a bench's device, and give it the bench's spec."""
    links = []

    def meet(bench, *options):
        data = tmp_path / f"{len(links)}.ftd"
        data.write_bytes(bench.shards[FAR].to_bytes())
        links.append(Link(program, data, *options))
        assert links[-1].equip(bench.spec) == (DONE, b"")
        return links[-1]

    yield meet
    for link in links:
        link.close()


def request(theta, *program, arrays=None, round=3):
    """A request that a device knows nothing of yet."""
    return Request("train", "fedtiny", round, program, theta, arrays or {}, 2**63 + 5)


def same(bench, link, engine, order):
    """Whether the program answers with the bytes of a device in Python."""
    reply = answer(engine, order, bench.shards[FAR], bench.config.seed)
    return link.ask(order, FAR) == (DONE, wire.encode_reply(reply, order.theta.mask))


def every_request(bench):
    """All that a program can be asked, one after the other."""
    sparse, whole = bench.theta(), bench.start
    kept = {layer: sparse.mask.kept(layer) for layer in COUNTS}
    ranks = np.concatenate(
        [np.random.default_rng(n).permutation(n) for n in whole.mask.counts.values()]
    ).astype(np.int32)
    statistics = {
        name: np.random.default_rng(len(name)).random((3, *shape), np.float32)
        for name, shape in sparse.param_spec.statistics.items()
    }
    yield request(sparse, messages.train(2))
    yield request(sparse, messages.train(2), messages.top_gradients(COUNTS, 0.01))
    yield request(sparse, messages.top_gradients(COUNTS, fisher=True))
    yield request(sparse, messages.top_gradients(COUNTS, 0.01, votes=True))
    yield request(sparse, messages.train(1, True), messages.evaluate())
    yield request(
        sparse, messages.train(2), messages.prune_and_grow(COUNTS, 0.01), messages.train(1)
    )
    yield request(sparse, messages.shared_gradients({"conv1.weight": 100, "hidden.weight": 5}))
    yield request(sparse, messages.drop_scores(kept, 0.01))
    yield request(whole, messages.sensitivity(), messages.evaluate())
    for order in (messages.bn_statistics(4), messages.bn_statistics(5, 3)):
        yield request(whole, order, arrays=messages.pool_arrays(POOL))
    exact = messages.bn_statistics(128, 1, "square")
    yield request(whole, exact, arrays=messages.pool_arrays(POOL, ranks=ranks))
    yield request(whole, messages.losses(), arrays=messages.pool_arrays(POOL, statistics, ranks))
    yield request(whole, messages.train(1), messages.evaluate())


def test_every_verb_gives_the_bytes_of_a_device_in_python(met):
    bench = lab(sizes=(30, 41, 25))
    link, engine = met(bench), NativeEngine(bench.spec)
    for order in every_request(bench):
        assert same(bench, link, engine, order), order.program


@pytest.mark.parametrize(
    ("changes", "prepared", "dropout"),
    [
        ({"train": {"optimizer": "sgd", "lr_schedule": "cosine", "lr_warmup": 2}}, {}, 0.3),
        (
            {"train": {"proximal_mu": 0.1, "decay_norms": False, "batch_size": 16}},
            {"flips": True, "cutout": 3, "crop_padding": 2},
            0.0,
        ),
        (
            {"train": {"freeze_bn": 0.1, "lr_schedule": "steps"}, "seed": 2**40 + 1},
            {"crop_padding": 0},
            0.0,
        ),
        ({"device": {"storage": "float16", "recompute": True, "remove_dead": True}}, {}, 0.0),
    ],
)
def test_every_setting_gives_the_bytes_of_a_device_in_python(met, changes, prepared, dropout):
    bench = lab(settings(**changes), sizes=(30, 41, 25), model=seeded(TinyNet, dropout))
    bench.spec = replace(bench.spec, preparation=replace(bench.spec.preparation, **prepared))
    link, engine = met(bench), NativeEngine(bench.spec)
    theta = bench.theta(0.1)
    for program in (
        (messages.train(3),),
        (messages.train(1), messages.prune_and_grow(COUNTS), messages.train(1)),
        (messages.top_gradients(COUNTS, 0.01), messages.evaluate()),
    ):
        assert same(bench, link, engine, request(theta, *program, round=12)), program


def test_what_a_device_holds_is_not_sent_twice(met):
    bench = lab()
    link, theta = met(bench), bench.theta()
    order = request(theta, messages.evaluate())
    assert link.ask(order, FAR, Known.of(theta))[0] == MISSING
    assert link.ask(order, FAR, Known(mask=theta.mask.version))[0] == MISSING
    whole = link.ask(order, FAR)
    assert whole[0] == DONE
    assert link.ask(order, FAR, Known.of(theta)) == whole
    assert link.ask(order, FAR, Known(mask=theta.mask.version)) == whole
    outcome, hello = link.tell(b"")
    assert outcome == HELLO
    assert b'"device":1' in hello
    assert link.tell(b"?who") == (HELLO, hello.replace(b'"question":""', b'"question":"who"'))
    assert link.tell(b"?" + 17 * b"x")[0] == FAILED
    assert link.hello["digest"] == bench.shards[FAR].digest
    assert link.ask(order, FAR) == (FAILED, b"this device was given no spec yet")
    link.equip(bench.spec)
    assert link.ask(order, FAR, Known.of(theta))[0] == MISSING


def test_what_a_device_cannot_do_it_says_in_a_sentence(met, tmp_path, program):
    bench = lab()
    link, theta = met(bench), bench.theta()

    def refused(*program, arrays=None):
        outcome, said = link.ask(request(theta, *program, arrays=arrays), FAR)
        assert outcome == FAILED
        return said.decode()

    assert "cannot 'congruent_swap'" in refused(messages.congruent_swap(COUNTS))
    assert "cannot extrude" in refused(messages.train(1, extrude={"conv1.weight": 1}))
    assert "no pool" in refused(messages.losses())
    too_many = messages.pool_arrays(np.full((1, 3), 10_000, np.int32))
    assert "more weights" in refused(messages.losses(), arrays=too_many)
    order = request(theta, messages.evaluate())
    assert link.ask(order, 2) == (FAILED, b"this device has the data of device 1, not of 2")
    damaged = bytearray(FAR.to_bytes(4, "little") + wire.encode_request(order, Known()))
    damaged[60] ^= 1
    assert b"checksum" in link.tell(bytes(damaged))[1]
    assert b"neither a spec nor a request" in link.tell(b"hello")[1]
    assert link.tell(b'{"config":{}}')[0] == FAILED
    colored = replace(bench.spec.preparation, mean=(0, 0), std=(1, 1))
    assert b"channels" in link.equip(replace(bench.spec, preparation=colored))[1]
    assert link.equip(bench.spec)[0] == DONE
    assert link.ask(order, FAR)[0] == DONE


@pytest.mark.parametrize("shape", [(288,), (1, 1, 288), (288, 1), (8, 36, 1, 1), (4, 8, 3, 3)])
def test_a_shape_that_the_network_does_not_have_is_refused(met, shape):
    bench = lab()
    link, plain = met(bench), bench.spec.to_plain()
    assert math.prod(plain["param_spec"]["prunable"]["conv1.weight"]) == math.prod(shape)
    plain["param_spec"]["prunable"]["conv1.weight"] = shape
    said = b"the tensor conv1.weight has another shape in the network"
    assert link.tell(json.dumps(plain).encode()) == (FAILED, said)
    assert link.equip(bench.spec)[0] == DONE


def test_a_spec_with_more_names_than_can_be_searched_is_refused(met):
    link, plain = met(lab()), lab().spec.to_plain()
    params = plain["param_spec"]
    many = {**params, "dense": {f"a{i}": [] for i in range(40_000)}}
    sent = json.dumps({**plain, "param_spec": many}).encode()
    assert link.tell(sent) == (FAILED, b"the network has too many tensors")
    twice = {**params, "norms": [*params["norms"], *params["norms"]]}
    sent = json.dumps({**plain, "param_spec": twice}).encode()
    assert link.tell(sent) == (FAILED, b"a norm is named twice")


@pytest.fixture(scope="module")
def large():
    """A network of megabytes, and a request to it."""
    model = seeded(fedtiny.models.build, "resnet18", (1, 8, 8), 10)
    bench = lab(settings(train={"batch_size": 64}), sizes=(80, 80), model=model)
    counts = dict.fromkeys(bench.param_spec.prunable, 500)
    program = messages.train(1), messages.top_gradients(counts, 0.01)
    return bench, request(bench.theta(0.1), *program)


def test_it_takes_the_memory_that_it_planned(program, large, tmp_path):
    """Resident memory of the process beyond that of an idle one."""
    bench, order = large
    data = tmp_path / "1.ftd"
    data.write_bytes(bench.shards[FAR].to_bytes())
    link = Link(program, data, "--verbose")
    idle = resident(link.process)
    assert link.equip(bench.spec) == (DONE, b"")
    assert link.ask(order, FAR)[0] == DONE
    taken = resident(link.process) - idle
    planned, counted = map(int, re.findall(r"planned (\d+) bytes, took (\d+)", link.close())[-1])
    assert planned > 4_000_000, "or this shows nothing"
    assert counted <= planned
    assert taken <= 1.2 * planned


def test_the_plan_has_the_largest_batch_and_a_row_for_each_candidate(program, tmp_path):
    bench = lab(sizes=(30, 300, 25))
    data = tmp_path / "1.ftd"
    data.write_bytes(bench.shards[FAR].to_bytes())
    link = Link(program, data, "--verbose")
    assert link.equip(bench.spec) == (DONE, b"")
    many = messages.pool_arrays(np.repeat(POOL, 500, axis=0))
    both = messages.bn_statistics(150), messages.bn_statistics(2)
    assert link.ask(request(bench.start, messages.bn_statistics(150), arrays=many), FAR)[0] == DONE
    assert link.equip(bench.spec) == (DONE, b"")
    pool = messages.pool_arrays(POOL)
    assert link.ask(request(bench.start, *both, arrays=pool), FAR)[0] == DONE
    told = re.findall(r"planned (\d+) bytes, took (\d+)", link.close())
    assert len(told) >= 2
    assert all(int(taken) <= int(planned) for planned, taken in told)


def test_a_request_that_does_not_fit_is_refused(met, large):
    bench, order = large
    link = met(bench, "--memory", "20000000")
    assert link.hello["memory"] == 20_000_000
    outcome, said = link.ask(order, FAR)
    assert outcome == FAILED
    assert re.search(r"needs \d+ bytes, and this device has 20000000", said.decode())
    outcome, said = link.tell(bytes(21_000_000))
    assert outcome == FAILED
    assert b"does not fit" in said
    assert link.equip(lab().spec)[0] == DONE


def test_a_lost_connection_is_made_again(program, tmp_path):
    bench = lab()
    data = tmp_path / "1.ftd"
    data.write_bytes(bench.shards[FAR].to_bytes())
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = "{}:{}".format(*listening.getsockname())
        process = subprocess.Popen([program, data, "--connect", address])
        try:
            answers = []
            for _ in range(2):
                listening.settimeout(20)
                channel = over(listening.accept()[0], 20)
                assert channel.recv_bytes()[0] == HELLO
                channel.send_bytes(json.dumps(bench.spec.to_plain()).encode())
                assert channel.recv_bytes() == bytes([DONE])
                order = wire.encode_request(request(bench.theta(), messages.train(1)), Known())
                channel.send_bytes(FAR.to_bytes(4, "little") + order)
                answers.append(channel.recv_bytes())
                channel.close()
            assert answers[0] == answers[1]
            assert answers[0][0] == DONE
        finally:
            process.kill()
            process.wait()


def test_it_is_small(program):
    assert program.stat().st_size <= LARGEST_PROGRAM
