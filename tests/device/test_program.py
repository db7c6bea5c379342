"""fedtiny-device beside a native device in Python: the same bytes, and a sentence for the rest."""

from dataclasses import replace

import numpy as np
import pytest

from fedtiny.devices.native_engine import NativeEngine
from fedtiny.devices.node import answer
from fedtiny.federation import messages, wire
from fedtiny.federation.messages import Request
from fedtiny.federation.wire import Known
from fedtiny.native import device_program
from fedtiny.native.compile import compiler
from fedtiny.native.library import available
from tests.devices.tiny import TinyNet, lab, seeded, settings

from .building import once
from .link import DONE, FAILED, HELLO, MISSING, Link

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        compiler() is None or not available(), reason="needs a C++ compiler and the native library"
    ),
]
FAR = 1  # the device that is a program
COUNTS = {"conv1.weight": 20, "hidden.weight": 9}
POOL = np.array([[100, 200, 30], [50, 300, 20], [288, 0, 64]], np.int32)
LARGEST_PROGRAM = 2_000_000  # bytes


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The program as users build it, for this machine."""
    return once(tmp_path_factory, "fedtiny-device", lambda to: device_program.build(to, strict=True))


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
    other = lab(model=seeded(TinyNet), sizes=(9, 9))
    graph = replace(bench.spec, preparation=replace(other.spec.preparation, mean=(0, 0), std=(1, 1)))
    assert b"channels" in link.equip(graph)[1]
    assert link.equip(bench.spec)[0] == DONE
    assert link.ask(order, FAR)[0] == DONE


def test_a_request_that_does_not_fit_is_refused(met):
    bench = lab()
    small, enough = met(bench, "--memory", "150000"), met(bench, "--memory", "3000000")
    order = request(bench.theta(), messages.train(1))
    outcome, said = small.ask(order, FAR)
    assert outcome == FAILED
    assert b"bytes" in said
    assert enough.ask(order, FAR)[0] == DONE
    assert enough.hello["memory"] == 3_000_000
    outcome, said = small.tell(bytes(200_000))
    assert outcome == FAILED
    assert b"does not fit" in said
    assert small.equip(bench.spec)[0] == DONE


def test_it_is_small(program):
    assert program.stat().st_size <= LARGEST_PROGRAM
