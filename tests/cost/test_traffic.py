"""Predicted bytes are the bytes that the codec writes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny import methods
from fedtiny.cost import Workload, traffic
from fedtiny.cost.workload import CountedMask
from fedtiny.federation.messages import POOL_COUNTS, Reply, Request, pool_arrays
from fedtiny.federation.server import Server
from fedtiny.federation.transport import Traffic
from fedtiny.federation.verbs import (
    BnStatistics,
    CongruentSwap,
    DropScores,
    Losses,
    PruneAndGrow,
    TopGradients,
)
from fedtiny.federation.wire import NOTHING_KNOWN, Known, encode_reply, encode_request
from fedtiny.federation.wire.indices import coded_size, expected_coded_size
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta, length
from fedtiny.sparse.vector import SparseVector

from .tiny import config

METHODS = sorted(methods.OURS)
GIVEN = {"shape": (3, 16, 16), "classes": 10, "samples": 40}


def work_of(method, density=0.2, **changes):
    return Workload.of(config(method, density, model="small", width=8, **changes), **GIVEN)


def random_positions(rng, count, size):
    return np.sort(rng.choice(size, count, replace=False)).astype(np.int32)


def random_mask(param_spec, counts, seed=0):
    rng = np.random.default_rng(seed)
    sizes = param_spec.sizes
    return Mask(param_spec, {n: random_positions(rng, k, sizes[n]) for n, k in counts.items()})


def random_theta(mask, seed=0):
    rng = np.random.default_rng(seed)
    return Theta(mask, rng.standard_normal(length(mask)).astype(np.float32))


def request_of(work, theta, round):
    """The request that the method itself would send."""
    method = methods.create(work.config)
    server = Server(work.config, None, theta, round=round)
    program = method.train_locally(server) + method.score(server)
    arrays = method.request_arrays(server)
    return Request("train", work.config.method, round, program, theta, arrays)


def reply_of(work, theta, round, seed=1):
    """A reply as a device would send it, with its positions coded."""
    rng = np.random.default_rng(seed)
    param_spec, program = work.network.param_spec, work.program(round)
    reply = Reply(3, work.samples, theta, metrics={"loss": traffic.TYPICAL_LOSS})
    if any(isinstance(verb, PruneAndGrow | CongruentSwap) for verb in program):
        own = random_mask(param_spec, work.mask.counts, seed)
        return replace(reply, theta=random_theta(own)), traffic.coded_mask(own)
    if program[0].sum_dense_gradients:
        zeros = {n: np.zeros(shape, np.float32) for n, shape in param_spec.prunable.items()}
        return replace(reply, arrays=zeros), {}
    found = {
        layer: SparseVector(
            param_spec.sizes[layer],
            random_positions(rng, number, param_spec.sizes[layer]),
            np.full(number, verb.votes, np.float32),
        )
        for verb in program
        if isinstance(verb, TopGradients)
        for layer, number in verb.counts.items()
    }
    scores = {
        layer: np.zeros(number, np.float32)
        for verb in program
        if isinstance(verb, DropScores)
        for layer, number in verb.counts.items()
    }
    coded = {layer: coded_size(vector.indices, vector.size) for layer, vector in found.items()}
    return replace(reply, gradients=found, arrays=scores), coded


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("round", [0, 1, 2])
@pytest.mark.parametrize("density", [0.05, 0.2, 1.0])
def test_a_round_takes_the_bytes_that_the_codec_writes(method, round, density):
    work = work_of(method, density)
    mask = random_mask(work.network.param_spec, work.mask.counts)
    work, theta = work.under(mask), random_theta(mask)
    request = request_of(work, theta, round)
    reply, positions = reply_of(work, theta, round)

    held = traffic.training_round(work, round, reply_positions=positions)
    assert held.down == len(encode_request(request, Known(mask=mask.version)))
    assert held.up == len(encode_reply(reply, mask))
    new = traffic.training_round(work, round, new_mask=True, reply_positions=positions)
    assert new.down == len(encode_request(request, NOTHING_KNOWN))
    assert new.up == held.up


@pytest.mark.parametrize("method", ["fedtiny", "feddst", "fl_pqsu", "prunefl"])
@pytest.mark.parametrize("density", [0.02, 0.3, 0.9])
def test_without_a_mask_the_bytes_are_those_of_a_random_one(method, density):
    work = work_of(method, density)
    mask = random_mask(work.network.param_spec, work.mask.counts)
    request = request_of(work, random_theta(mask), round=0)
    reply, _ = reply_of(work, request.theta, round=0)
    found = traffic.training_round(work, 0, new_mask=True)
    assert found.down == pytest.approx(len(encode_request(request, NOTHING_KNOWN)), rel=0.02)
    assert found.up == pytest.approx(len(encode_reply(reply, mask)), rel=0.02)


@given(
    size=st.integers(2_000, 50_000),
    density=st.floats(0.001, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_expected_bytes_of_random_positions(size, density, seed):
    count = max(1, round(density * size))
    rng = np.random.default_rng(seed)
    found = coded_size(random_positions(rng, count, size), size)
    spread = 4 + 4 * np.sqrt(count) / 8
    assert abs(expected_coded_size(count, size) - found) <= max(spread, 0.02 * found)


def test_the_expected_bytes_of_no_position_and_of_all():
    assert expected_coded_size(0, 1000) == coded_size(np.empty(0, np.int32), 1000)
    assert expected_coded_size(1000, 1000) == coded_size(None, 1000) == 1


def selection_messages(work):
    """Algorithm 1's two questions and answers, as FedTiny and a device would put them."""
    full = Mask.full(work.network.param_spec)
    pool = CandidatePool.cut(random_theta(full), work.coarse[0].arrays[POOL_COUNTS])
    statistics = {
        name: np.zeros((len(pool), *shape), np.float32)
        for name, shape in work.network.param_spec.statistics.items()
    }
    settings = work.config.selection
    moment = "square" if settings.variance == "pooled" else "var"
    verbs = (BnStatistics(settings.batch_size, settings.passes, moment),), (Losses(),)
    arrays = pool_arrays(pool.counts), pool_arrays(pool.counts, statistics)
    requests = [
        Request("select", "fedtiny", 0, program, pool.theta, given)
        for program, given in zip(verbs, arrays, strict=True)
    ]
    sent = {
        name.replace("running_var", "running_square") if moment == "square" else name: rows
        for name, rows in statistics.items()
    }
    found = {"losses": np.zeros(len(pool), np.float32)}
    return pool, requests, [Reply(0, 10, arrays=sent), Reply(0, 10, arrays=found)]


@pytest.mark.parametrize("variance", ["mean", "pooled"])
def test_selection_takes_the_bytes_that_the_codec_writes(variance):
    work = work_of("fedtiny", selection={"pool_size": 7, "variance": variance})
    pool, (first, second), replies = selection_messages(work)
    mask, theta = pool.theta.mask, pool.theta
    down = len(encode_request(first, NOTHING_KNOWN))
    down += len(encode_request(second, Known(mask.version, theta.version)))
    up = sum(len(encode_reply(reply, mask)) for reply in replies)
    assert traffic.selection(work, pool_mask=mask) == Traffic(down, up)
    expected = traffic.selection(work)
    assert expected.down == pytest.approx(down, rel=0.02)
    assert expected.up == up


def test_vanilla_selection_asks_for_losses_alone():
    work = work_of("fedtiny", selection={"kind": "vanilla"})
    pool, (_, second), (_, reply) = selection_messages(work)
    without = replace(second, arrays=pool_arrays(pool.counts))
    assert traffic.selection(work, pool_mask=pool.theta.mask) == Traffic(
        down=len(encode_request(without, NOTHING_KNOWN)),
        up=len(encode_reply(reply, pool.theta.mask)),
    )


def test_selection_costs_nothing_where_there_is_none():
    assert traffic.selection(work_of("snip")) == Traffic()
    assert traffic.selection(work_of("fedtiny", selection={"kind": "none"})) == Traffic()


def test_the_paper_counts_eight_bytes_a_kept_weight_of_every_candidate():
    work = work_of("fedtiny", density=0.2, selection={"pool_size": "auto"})
    assert work.config.pool_size == 2
    assert traffic.paper_selection(work) == 8 * 2 * work.kept
    assert traffic.paper_selection(work_of("fl_pqsu")) == 0


def test_the_pool_is_the_one_that_a_run_draws():
    work = work_of("fedtiny", seed=5)
    dense = random_theta(Mask.full(work.network.param_spec))
    server = Server(work.config, None, dense)
    drawn = methods.create(work.config).candidates(server)
    assert np.array_equal(work.coarse[0].arrays[POOL_COUNTS], drawn.counts)


def test_the_bytes_of_a_large_model_are_found_without_its_memory():
    shape = (1 << 14, 1 << 14)  # a gibibyte of weights
    param_spec = ParamSpec({"large": shape}, {"bias": (2,)}, (("large",),), (), "first", "last")
    work = work_of("fl_pqsu")
    mask = CountedMask(param_spec, {"large": 10**6})
    large = replace(work, network=replace(work.network, param_spec=param_spec), mask=mask)
    found = traffic.training_round(large, 1)
    assert 0 < found.down - 4 * (10**6 + 2) < 200
