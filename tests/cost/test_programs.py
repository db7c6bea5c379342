"""What a method is costed by: the programs that it gives, whoever wrote it."""

from dataclasses import replace

import numpy as np
import pytest

from fedtiny import methods
from fedtiny.cost import Workload, flops, memory, summary, traffic
from fedtiny.devices.executors import SerialExecutor
from fedtiny.devices.simulator import Simulator
from fedtiny.federation.messages import (
    Request,
    Verb,
    evaluate,
    shared_gradients,
    top_gradients,
    train,
)
from fedtiny.federation.method import CoarseRequest, Method
from fedtiny.federation.reply_spec import expected, reply_bytes
from fedtiny.federation.rounds import play_round, prepare
from fedtiny.federation.verbs import Evaluate, TopGradients, Train
from fedtiny.federation.wire.indices import coded_size
from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.candidates import prune_by_magnitude
from fedtiny.sparse.densities import uniform
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.theta import Theta

from ..devices.tiny import TinyNet, lab, seeded, settings
from .tiny import GIVEN, config, tiny_network, workload

SAMPLES = 16
CIFAR = {"shape": (3, 32, 32), "classes": 10, "samples": 50}
HALF = 2 * (288 + 64 + 160 + 15)  # one forward pass of one image of the tiny network


class Twice(Method):
    """Trains twice and measures gradients of one layer in every round."""

    name = "twice"

    def coarse_prune(self, server):
        counts = uniform(server.param_spec, self.config.density)
        server.theta = prune_by_magnitude(server.theta, counts)

    def train_locally(self, server):
        return train(1), train(self.config.train.local_epochs)

    def score(self, server):
        layer = list(server.param_spec.prunable)[-1]
        return (top_gradients({layer: 7}),)


class Guest(Method):
    """Built for one test each."""

    name = "guest"


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setitem(methods.OURS, "twice", Twice)
    monkeypatch.setitem(methods.OURS, "guest", Guest)


class Recording(SerialExecutor):
    """Real devices whose loss has as many digits as the cost model takes; it keeps a reply."""

    def answers(self, tasks):
        for reply in super().answers(tasks):
            self.last = replace(reply, metrics={"loss": traffic.TYPICAL_LOSS})
            yield self.last


def counted_and_predicted(asked):
    """The bytes of the first two rounds as the simulator counts them, and as they are predicted."""
    bench = lab(asked, sizes=(SAMPLES,), augment=False)
    executor = Recording(bench.engine, seed=0)
    bench.server.transport = Simulator(executor, bench.shards, bench.config)
    prepare(bench.server, bench.method)
    work = Workload.of(
        asked, model=seeded(TinyNet), shape=bench.data.shape, classes=3, samples=SAMPLES
    )
    for round in range(2):
        result = play_round(bench.server, bench.method)
        found = traffic.training_round(
            work.under(result.mask),
            round,
            new_mask=round == 0 or asked.method == "feddst",
            reply_positions=positions_of(executor.last),
        )
        yield result.outcome.traffic, found


def positions_of(reply):
    vectors = {layer: (v.indices, v.size) for layer, v in reply.gradients.items()}
    return {layer: coded_size(*vector) for layer, vector in vectors.items()} or traffic.coded_mask(
        reply.theta.mask
    )


@pytest.mark.parametrize("wire", ["count", "encode"])
@pytest.mark.parametrize("epochs", [1, 5, 10])
def test_feddst_sends_the_bytes_that_are_predicted(epochs, wire):
    asked = settings(method="feddst", fleet={"wire": wire}, train={"local_epochs": epochs})
    for counted, predicted in counted_and_predicted(asked):
        assert counted == predicted


@pytest.mark.parametrize("wire", ["count", "encode"])
@pytest.mark.parametrize("rule", ["gradient", "fisher", "votes", "random", "shared"])
def test_every_rule_of_growth_sends_the_bytes_that_are_predicted(rule, wire):
    pruning = {"growth": rule, "granularity": "entire"}
    asked = settings(fleet={"wire": wire}, pruning=pruning, selection={"kind": "none"})
    (first, predicted), _ = counted_and_predicted(asked)
    assert first == predicted


def test_bytes_of_an_event_by_rule():
    """Beside a model of two layers with 40 of 400 kept: 12 of a layer are grown."""
    spec = ParamSpec({"a": (20, 20), "b": (20, 20)}, {}, (("a", "b"),), (), "first", "last")
    mask = Mask(spec, dict.fromkeys(spec.prunable, np.arange(40)))
    theta = Theta(mask, np.zeros(80, np.float32))

    def up(*program):
        request = Request("train", "fedtiny", 0, program, theta)
        return reply_bytes(expected(request), spec, mask.counts, lambda layer, n: 10 + n, 0.5)

    plain, twelve = up(train(1)), {"a": 12, "b": 12}
    assert up(train(1), top_gradients(twelve)) - plain == 2 * (2 + 22 + 4 * 12)
    assert up(train(1), top_gradients(twelve, fisher=True)) - plain == 2 * (2 + 22 + 4 * 12)
    assert up(train(1), top_gradients(twelve, votes=True)) - plain == 2 * (2 + 22)
    shared = up(train(1), shared_gradients(dict.fromkeys("ab", 48), seed=1)) - plain
    assert shared == 2 * (1 + 1 + 2 + 4 + 4 * 48)  # name, dtype, dimensions and values


def test_pools_of_several_kinds_take_the_bytes_that_are_predicted():
    selection = {"pool": "magnitude,erk,flow,random", "pool_size": 9}
    asked = settings(method="fedtiny", density=0.3, selection=selection)
    bench = lab(asked, sizes=(SAMPLES,), augment=False)
    prepare(bench.server, bench.method)
    given = {"shape": bench.data.shape, "classes": 3, "samples": SAMPLES}
    work = Workload.of(asked, model=seeded(TinyNet), flow=bench.method.flow, **given)
    assert work.candidates == 9
    predicted = traffic.selection(work)
    assert predicted.up == bench.server.traffic.up
    assert predicted.down == pytest.approx(bench.server.traffic.down, rel=0.03)


def test_a_pool_is_costed_as_its_dearest_kind():
    def kept(pool):
        selection = {"pool": pool, "pool_size": 4}
        return Workload.of(settings(density=0.1, selection=selection), **CIFAR).load.forward

    magnitude, erk = kept("magnitude"), kept("erk")
    assert erk > magnitude
    assert kept("magnitude,erk") == kept("erk,magnitude") == erk


@pytest.mark.parametrize("wire", ["count", "encode"])
def test_a_third_partys_method_sends_the_bytes_that_are_predicted(wire):
    asked = settings(method="twice", fleet={"wire": wire}, train={"local_epochs": 10})
    for counted, predicted in counted_and_predicted(asked):
        assert counted == predicted


def test_a_third_partys_method_is_costed_by_its_own_programs():
    work = workload("twice")
    assert work.program(3) == (Train(1), Train(2), TopGradients({"5.weight": 7}))
    assert flops.of_round(work, 3) == {
        "forward": 3 * 20 * HALF,
        "input_gradient": 3 * 20 * HALF,
        "weight_gradient": 3 * 20 * HALF,
        "top_a_pass": 8 * (HALF + 2 * 15 + 2 * 320),
    }
    assert memory.device(work)["top_a_buffer"] == 8 * 7
    assert memory.device(work)["gradient_slab"] == 4 * 64
    row = summary(config("twice"), model=tiny_network(), **GIVEN)
    assert row["flops_round"] == sum(flops.of_round(work, 0).values())
    assert row["flops_training"] == 3 * 3 * 20 * HALF
    assert row["bytes_up"] > summary(config("snip"), model=tiny_network(), **GIVEN)["bytes_up"]
    assert not any("not known:" in note or "costed as" in note for note in row["notes"])


def test_what_a_third_party_asks_and_scores_before_round_0_is_costed(monkeypatch):
    sizes = {"3.weight": 8, "5.weight": 320}
    asked = CoarseRequest((evaluate(),), sizes)
    monkeypatch.setattr(Guest, "coarse_requests", lambda self, param_spec: (asked,))
    monkeypatch.setattr(Guest, "scored_images", lambda self, public: 2 * public)
    row = summary(config("guest"), model=tiny_network(), **GIVEN)
    assert row["selection_flops"] == 20 * HALF
    assert row["selection_bytes_down"] > 4 * 328
    assert row["server_flops"]["coarse_pruning"] == 2 * 15 * 3 * 2 * (288 + 128 + 320 + 15)
    assert row["pool_size"] == row["selection_bytes_paper"] == 0


def test_a_verb_of_a_third_partys_own_has_costs_that_are_not_known(monkeypatch):
    monkeypatch.setattr(Guest, "score", lambda self, server: (Verb("somersault"), Evaluate()))
    row = summary(config("guest"), model=tiny_network(), **GIVEN)
    assert row["notes"][0] == "'guest' asks for verbs whose costs are not known: somersault"
    assert row["flops_items"]["evaluation"] == 20 * HALF
    assert row["flops_round"] == row["flops_training"] + 20 * HALF


class Somersault(Verb):
    """A verb of a third party's own that knows its costs."""

    def __init__(self):
        super().__init__("somersault")

    def flops(self, load):
        return {"somersault": 5 * load.samples}


def test_a_third_partys_verb_may_know_its_costs(monkeypatch):
    monkeypatch.setattr(Guest, "score", lambda self, server: (Somersault(),))
    row = summary(config("guest"), model=tiny_network(), **GIVEN)
    assert row["flops_items"]["somersault"] == 5 * 20
    assert not any("not known:" in note for note in row["notes"])


def test_a_method_that_needs_a_run_under_way_is_costed_as_plain_training(monkeypatch):
    monkeypatch.setattr(Guest, "score", lambda self, server: server.memory["chosen"])
    theirs = summary(config("guest"), model=tiny_network(), **GIVEN)
    plain = summary(config("fl_pqsu"), model=tiny_network(), **GIVEN)
    assert theirs["flops_items"] == plain["flops_items"]
    assert theirs["notes"][0] == (
        "'guest' needs a run under way (KeyError: 'chosen'): costed as plain sparse training"
    )


def test_a_verb_built_by_name_is_costed_like_the_class(monkeypatch):
    named = (Verb("train", {"epochs": 3}),)
    monkeypatch.setattr(Guest, "train_locally", lambda self, server: named)
    work = workload("guest")
    assert work.program(0) == (Train(3),) == named
    assert flops.training(flops.of_round(work, 0)) == 3 * 3 * 20 * HALF


def test_rounds_without_end_are_costed_as_many_are():
    few, many = (workload("fedtiny", rounds=rounds) for rounds in (20, 10**15))
    assert many.programs == few.programs
    never = workload("fedtiny", rounds=10**15, pruning={"r_stop": 10**14})
    assert never.program(never.plain_round) in never.programs.values()
