"""One class a verb: its options on the wire, its reply, and verbs that are not fedtiny's own."""

import json

import numpy as np
import pytest

from fedtiny.federation import messages, wire
from fedtiny.federation.messages import Request, Verb, pool_arrays
from fedtiny.federation.reply_spec import ReplySpec, expected
from fedtiny.federation.verbs import (
    KNOWN,
    BnStatistics,
    CongruentSwap,
    DropScores,
    Evaluate,
    Losses,
    PruneAndGrow,
    Sensitivity,
    SharedGradients,
    TopGradients,
    Train,
    typed,
)

from .fakes import HALF, theta_of

THETA = theta_of(HALF, 0.5)
POOL = np.ones((3, 3), np.int32)

COUNTS = {"a.weight": 2}
ON_THE_WIRE = [
    (Train(5), "train", {"epochs": 5}),
    (Train(0), "train", {"epochs": 0}),
    (Train(1, True), "train", {"epochs": 1, "sum_dense_gradients": True}),
    (Train(1, extrude=COUNTS), "train", {"epochs": 1, "extrude": COUNTS}),
    (
        CongruentSwap(COUNTS, 0.5, 0.1),
        "congruent_swap",
        {"counts": COUNTS, "epsilon": 0.5, "share": 0.1},
    ),
    (DropScores(COUNTS), "drop_scores", {"counts": COUNTS}),
    (Sensitivity(), "sensitivity", {}),
    (PruneAndGrow(COUNTS), "prune_and_grow", {"counts": COUNTS}),
    (TopGradients(COUNTS, 0.01), "top_gradients", {"counts": COUNTS, "epsilon": 0.01}),
    (TopGradients(COUNTS, fisher=True), "top_gradients", {"counts": COUNTS, "fisher": True}),
    (TopGradients(COUNTS, votes=True), "top_gradients", {"counts": COUNTS, "votes": True}),
    (SharedGradients(COUNTS, seed=3), "shared_gradients", {"counts": COUNTS, "seed": 3}),
    (
        BnStatistics(128),
        "bn_statistics",
        {"batch_size": 128, "passes": 1, "second_moment": "var"},
    ),
    (Losses(), "losses", {}),
    (Evaluate(), "evaluate", {}),
]


@pytest.mark.parametrize(("verb", "name", "options"), ON_THE_WIRE)
def test_a_verb_is_its_name_and_plain_options(verb, name, options):
    assert (verb.name, verb.options) == (name, options)
    assert json.loads(json.dumps(dict(verb.options))) == options
    assert verb == Verb(name, options) == typed(Verb(name, options))
    assert type(typed(Verb(name, options))) is type(verb) is KNOWN[name]
    assert hash(verb) == hash(Verb(name, options))


@pytest.mark.parametrize(("verb", "name", "options"), ON_THE_WIRE)
def test_a_device_receives_the_class_that_was_sent(verb, name, options):
    request = Request("act", "method", 3, (Verb(name, options),), THETA)
    data = wire.encode_request(request, wire.NOTHING_KNOWN)
    (received,) = wire.decode_request(data, THETA.param_spec).program
    assert type(received) is type(verb)
    assert received == verb


def test_every_verb_has_the_name_that_programs_are_written_with():
    assert {name: getattr(messages, name) for name in KNOWN} == KNOWN


def test_verbs_that_differ_are_told_apart():
    assert Train(1) != Train(2)
    assert Train(1) != Verb("practice", {"epochs": 1})
    assert TopGradients(COUNTS) != PruneAndGrow(COUNTS)
    assert repr(Train(1)) == "Train(epochs=1, sum_dense_gradients=False, extrude=None)"
    assert repr(Verb("act", {"x": 1})) == "Verb('act', {'x': 1})"


def test_options_cannot_change_once_a_verb_is_made():
    counts = dict(COUNTS)
    verb = TopGradients(counts)
    counts["a.weight"] = 9
    assert verb.counts == COUNTS
    with pytest.raises(AttributeError):
        verb.epsilon = 1.0


@pytest.mark.parametrize(
    "options", [{}, {"epoch": 1}, {"epochs": 1, "rate": 2}, {"counts": {}}], ids=str
)
def test_options_that_do_not_fit_are_refused(options):
    takes = "the verb 'train' takes epochs, sum_dense_gradients, extrude, not"
    with pytest.raises(ValueError, match=takes):
        Request("act", "method", 0, (Verb("train", options),), THETA)


def test_a_third_partys_verb_may_answer_anything():
    request = Request("act", "method", 0, (Verb("somersault", {"times": 3}), Train(1)), THETA)
    assert type(request.program[0]) is Verb
    assert expected(request) == ReplySpec(theta=True, metrics={"loss"}, open_ended=True)
    assert Verb("somersault").flops(None) == Verb("somersault").memory(None) == {}


def test_what_each_verb_answers():
    def spec(*program):
        return expected(Request("act", "method", 0, program, THETA, pool_arrays(POOL)))

    assert spec(Train(1, True)).arrays == dict(THETA.param_spec.prunable)
    assert spec(Train(1), PruneAndGrow(COUNTS)) == ReplySpec(
        theta=True, own_mask=True, swaps=COUNTS, metrics={"loss"}
    )
    assert spec(TopGradients(COUNTS)).gradients == COUNTS
    assert not spec(TopGradients(COUNTS)).votes
    assert spec(TopGradients(COUNTS, votes=True)) == ReplySpec(gradients=COUNTS, votes=True)
    assert spec(SharedGradients(COUNTS, seed=3)).arrays == {n: (a,) for n, a in COUNTS.items()}
    assert spec(Losses()).arrays == {"losses": (3,)}
    assert spec(Evaluate()).metrics == {"loss", "accuracy"}
    shapes = THETA.param_spec.statistics
    assert spec(BnStatistics(8)).arrays == {name: (3, *shape) for name, shape in shapes.items()}
    square = spec(BnStatistics(8, 1, "square")).arrays
    assert {name.replace("running_square", "running_var") for name in square} == set(shapes)
