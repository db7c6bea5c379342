"""Pools of several kinds: what each keeps, how they are asked about, the choice among equals."""

from functools import partial

import numpy as np
import pytest

from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.federation.messages import POOL_RANKS
from fedtiny.federation.rounds import federate, prepare
from fedtiny.methods.pool import (
    Candidates,
    candidate_counts,
    costed_counts,
    cut_pool,
    shared_out,
)
from fedtiny.methods.selection import choose
from fedtiny.sparse.candidates import CandidatePool
from fedtiny.sparse.densities import budget, erdos_renyi_kernel, uniform
from fedtiny.sparse.iterative import prune_iteratively

from ..devices.tiny import PlainNet, lab, seeded, settings

KINDS = ("magnitude", "erk", "flow", "random")


def bench_of(pool="magnitude,erk,flow,random", size=8, **selection):
    given = {"pool": pool, "pool_size": size, "development_ratio": 0.5, **selection}
    return lab(settings(density=0.1, selection=given))


# What a kind keeps


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_s_candidates_differ_and_keep_to_the_density(kind):
    bench = bench_of()
    pool = cut_pool(bench.method, kind, 20, bench.server)
    most = budget(bench.param_spec, 0.1)
    assert len(np.unique(pool.counts, axis=0)) > 10
    assert (pool.counts.sum(axis=1) <= most).all()
    assert (pool.counts.sum(axis=1) > 0.9 * most).all()
    assert (pool.counts >= 1).all()


def test_erk_candidates_are_magnitude_cuts_around_erk():
    bench = bench_of()
    pool = cut_pool(bench.method, "erk", 50, bench.server)
    base = erdos_renyi_kernel(bench.param_spec, 0.1)
    assert (np.abs(pool.counts - base) <= 0.5 * base + 1).all()
    assert pool.ranks is None
    for layer, count in pool[0].mask.counts.items():
        magnitudes = np.abs(bench.start.kept(layer))
        assert set(pool[0].mask.indices(layer)) == set(np.argsort(-magnitudes)[:count])


@pytest.mark.parametrize("normalized", [False, True])
def test_flow_candidates_keep_what_synflow_keeps(normalized):
    """With the counts that they are drawn around they are SynFlow's own mask, but for the norm."""
    bench = bench_of()
    method, server = bench.method, bench.server
    method.flow.normalized = normalized
    pool = cut_pool(method, "flow", 10, server)
    base = method.flow.counts(0.1, 0.5, method.config.pruning.iterations)
    assert (np.abs(pool.counts - base) <= 0.5 * base + 1).all()
    pruned = prune_iteratively(
        server.theta,
        partial(server.public.synaptic_flow, normalized=normalized),
        0.1,
        iterations=method.config.pruning.iterations,
        budgets=base,
    )
    for candidate in pool:
        for layer in candidate.mask:
            own, whole = candidate.mask.indices(layer), pruned.mask.indices(layer)
            fewer, more = sorted((own.tolist(), whole.tolist()), key=len)
            assert set(fewer) <= set(more)


@pytest.mark.parametrize("floor", [0.5, 1])
def test_flow_candidates_keep_the_floor_of_every_layer(floor):
    bench = bench_of()
    bench.method.flow.floors = dict.fromkeys(bench.param_spec.sizes, floor)
    pool = cut_pool(bench.method, "flow", 20, bench.server)
    assert (pool.counts >= np.floor(floor * uniform(bench.param_spec, 0.1))).all()
    assert (pool.counts.sum(axis=1) <= budget(bench.param_spec, 0.1)).all()
    if floor < 1:
        assert len(np.unique(pool.counts, axis=0)) > 5


@pytest.mark.parametrize(("budgets", "counts"), [("uniform", uniform), ("erk", erdos_renyi_kernel)])
def test_candidates_of_a_method_s_own_kind_are_drawn_around_the_budgets_asked_for(budgets, counts):
    given = {"method": "fedtiny_flow", "density": 0.1, "pruning": {"budgets": budgets}}
    bench = lab(settings(**given, selection={"kind": "vanilla", "pool_size": 4}))
    pool = cut_pool(bench.method, "flow", 50, bench.server)
    base = counts(bench.param_spec, 0.1)
    assert (np.abs(pool.counts - base) <= 0.5 * base + 1).all()


def test_random_candidates_are_not_those_of_magnitude_and_repeat():
    pools = [cut_pool(b.method, "random", 3, b.server) for b in (bench_of(), bench_of())]
    assert np.array_equal(pools[0].ranks, pools[1].ranks)
    assert pools[0].theta.mask == pools[1].theta.mask
    bench = bench_of()
    by_magnitude = cut_pool(bench.method, "magnitude", 3, bench.server)
    assert pools[0].theta.mask != by_magnitude.theta.mask


def test_the_paper_s_pool_is_drawn_as_before():
    """Whatever other kinds there are, magnitude has its own draws."""
    alone = candidate_counts(bench_of("magnitude").method, "magnitude", 4, bench_of().param_spec)
    among = candidate_counts(bench_of().method, "magnitude", 4, bench_of().param_spec)
    assert np.array_equal(alone, among)


# Asking and choosing


def test_each_kind_is_asked_about_by_itself_and_all_are_compared():
    bench = bench_of(size=10)
    requests = []
    ask = bench.transport.ask
    bench.transport.ask = lambda d, r, *how: requests.append(r) or ask(d, r, *how)
    prepare(bench.server, bench.method)
    record = bench.server.memory["selection"]
    assert [r.program[0].name for r in requests] == ["bn_statistics", "losses"] * 4
    assert [r.candidates for r in requests] == [3, 3, 3, 3, 2, 2, 2, 2]
    assert [POOL_RANKS in r.arrays for r in requests] == [False] * 4 + [True] * 4
    assert record["kinds"] == ["magnitude"] * 3 + ["erk"] * 3 + ["flow"] * 2 + ["random"] * 2
    assert len(record["losses"]) == len(record["layer_counts"]) == len(record["densities"]) == 10
    assert record["chosen"] == np.argmin(record["losses"])
    chosen = record["layer_counts"][record["chosen"]]
    assert list(bench.server.theta.mask.counts.values()) == chosen


@pytest.mark.parametrize("kind", ["adaptive_bn", "vanilla"])
@pytest.mark.parametrize("variance", ["mean", "pooled"])
def test_encoded_or_counted_the_same_is_chosen(kind, variance):
    def ran(wire):
        selection = {"pool": "flow,random", "pool_size": 4, "kind": kind, "variance": variance}
        bench = lab(settings(density=0.1, selection=selection, fleet={"wire": wire}))
        (result,) = federate(bench.server, bench.method, 1)
        return bench.server.memory["selection"], bench.server.traffic, result.outcome.theta.version

    assert ran("encode") == ran("count")


def test_without_kinds_the_record_is_the_paper_s():
    bench = bench_of(None)
    prepare(bench.server, bench.method)
    keys = {"chosen", "losses", "densities", "layer_counts", "layers"}
    assert bench.server.memory["selection"].keys() == keys


def test_candidates_are_shared_out():
    assert shared_out(KINDS, 9) == {"magnitude": 3, "erk": 2, "flow": 2, "random": 2}
    bench = bench_of(size=3)
    with pytest.raises(ConfigError, match="a pool of 3 cannot have 4 kinds"):
        bench.method.check(bench.param_spec)


@pytest.mark.parametrize("pool", ["", "magnitude,", "magnitud", "flow,flow", "flow, erk"])
def test_kinds_that_are_none_are_refused(pool):
    with pytest.raises(ConfigError, match=r"--selection\.pool takes kinds of candidates"):
        settings(selection={"pool": pool})


def equals(bench):
    """A pool of two: a cut of few layers' worth, and one that is well connected."""
    least = np.ones(len(bench.param_spec.sizes), np.int32)
    few = CandidatePool.cut(bench.start, np.array([least], np.int32))
    full = np.array([[*bench.param_spec.sizes.values()]], np.int32)
    return Candidates({"magnitude": few, "flow": CandidatePool.cut(bench.start, full)})


@pytest.mark.parametrize(
    ("losses", "tolerance", "chosen", "tied"),
    [
        ([1.0, 1.002], 0.0, 0, [0]),
        ([1.0, 1.002], 0.003, 1, [0, 1]),
        ([1.0, 1.004], 0.003, 0, [0]),
        ([np.inf, 1.0], 0.003, 1, [1]),
    ],
)
def test_of_losses_that_cannot_be_told_apart_the_best_connected_wins(
    losses, tolerance, chosen, tied
):
    bench = bench_of()
    found = choose(bench.server, equals(bench), np.array(losses, np.float32), tolerance)
    assert (found.candidate, found.tied) == (chosen, tied)
    assert found.rule == ("most useful weights" if len(tied) > 1 else "lowest loss")


def test_without_a_graph_the_kind_decides():
    bench = bench_of()
    bench.server.public = None
    found = choose(bench.server, equals(bench), np.array([1.0, 1.0], np.float32), 0.003)
    assert (found.candidate, found.rule) == (1, "kind")


def test_a_tie_is_told_in_the_record():
    bench = bench_of(tolerance=100.0)
    prepare(bench.server, bench.method)
    record = bench.server.memory["selection"]
    assert record["tied"] == list(range(8))
    assert (record["tolerance"], record["rule"]) == (100.0, "most useful weights")


def test_flow_needs_a_public_set():
    bench = bench_of("flow")
    bench.server.public = None
    with pytest.raises(FedTinyError, match="need a public set"):
        prepare(bench.server, bench.method)


def test_a_network_without_batch_norm_has_kinds_too():
    config = settings(density=0.1, selection={"kind": "vanilla", "pool": "flow,erk"})
    bench = lab(config, model=seeded(PlainNet))
    prepare(bench.server, bench.method)
    assert bench.server.memory["selection"]["kinds"] == ["flow", "flow", "erk", "erk"]


# What it costs


@pytest.mark.parametrize(
    ("pool", "more", "estimated"),
    [
        ("flow,erk", {}, True),
        ("erk,magnitude", {}, False),
        ("flow", {"pruning": {"budgets": "flow"}}, False),
        ("flow", {"flops_budget": "20%"}, False),
        ("flow", {"method": "fedtiny_flow", "pruning": {"budgets": "uniform"}}, False),
    ],
)
def test_costs_of_flow_that_are_erk_s_are_said_to_be(pool, more, estimated):
    bench = lab(settings(density=0.1, selection={"pool": pool}, **more))
    told = " ".join(bench.method.remarks(bench.param_spec))
    assert ("estimated by ERK's" in told) == estimated
    asked = costed_counts(bench.method, pool.split(",")[0], bench.param_spec)
    if estimated:
        np.testing.assert_array_equal(asked, erdos_renyi_kernel(bench.param_spec, 0.1))
