"""A device runs the verbs of a program in order and says what its figures stand for."""

import numpy as np
import pytest

from fedtiny import methods
from fedtiny.devices import node
from fedtiny.errors import FedTinyError
from fedtiny.federation.messages import (
    Request,
    Verb,
    bn_statistics,
    evaluate,
    losses,
    pool_arrays,
    prune_and_grow,
    top_gradients,
    train,
)
from fedtiny.federation.method import Method
from fedtiny.sparse.vector import SparseVector

from .tiny import lab, settings

COUNTS = np.array([[20, 30, 4], [25, 20, 5]], np.int32)


@pytest.fixture
def bench():
    return lab()


def request(bench, *program, arrays=None, round=3):
    return Request("train", "fedtiny", round, program, bench.theta(), arrays or {})


def answer(bench, *program, device=1, **rest):
    return node.answer(bench.engine, request(bench, *program, **rest), bench.shards[device], 0)


class Diary:
    """An engine that does nothing and writes it down."""

    def __init__(self, theta):
        self.calls, self._theta = [], theta

    def load(self, theta):
        self.calls.append(("load", theta.version))

    def theta(self):
        return self._theta

    def train(self, shard, rng_key, *, epochs, **_):
        self.calls.append(("train", shard.device, rng_key.round, epochs))
        return {"loss": 0.5}, {}

    def top_gradients(self, shard, rng_key, *, counts, **_):
        self.calls.append(("top_gradients", shard.device, rng_key.round, dict(counts)))
        empty = np.empty(0, np.int32), np.empty(0, np.float32)
        return {layer: SparseVector(99, *empty) for layer in counts}

    def evaluate(self, shard):
        self.calls.append(("evaluate", shard.device))
        return {"accuracy": 0.25}


def test_the_verbs_run_in_order_on_the_parameters_of_the_request(bench):
    order = request(bench, train(2), top_gradients({"conv1.weight": 7}), evaluate(), train(1))
    diary = Diary(trained := bench.theta(seed=5))
    reply = node.answer(diary, order, bench.shards[1], seed=0)
    assert diary.calls == [
        ("load", order.theta.version),
        ("train", 1, 3, 2),
        ("top_gradients", 1, 3, {"conv1.weight": 7}),
        ("evaluate", 1),
        ("train", 1, 3, 1),
    ]
    assert (reply.device, reply.samples, reply.theta) == (1, 9, trained)
    assert reply.gradients.keys() == {"conv1.weight"}
    assert reply.metrics == {"loss": 0.5, "accuracy": 0.25}
    assert reply.arrays == {}


def test_a_program_that_does_not_train_sends_no_parameters(bench):
    reply = answer(bench, evaluate())
    assert reply.theta is None
    assert reply.metrics.keys() == {"loss", "accuracy"}
    assert reply.samples == 9


def test_gradients_are_taken_after_training(bench, monkeypatch):
    measured, plain = [], bench.engine.top_gradients

    def spy(*args, **kwargs):
        measured.append(bench.engine.theta().version)
        return plain(*args, **kwargs)

    monkeypatch.setattr(bench.engine, "top_gradients", spy)
    reply = answer(bench, train(1), top_gradients({"conv2.weight": 5}))
    assert measured == [reply.theta.version]
    assert reply.theta.version != bench.theta().version
    assert len(reply.gradients["conv2.weight"]) == 5


def test_draws_are_keyed_by_the_request_s_round(bench):
    versions = {answer(bench, train(1), round=round).theta.version for round in (0, 1, 1)}
    assert len(versions) == 2


def test_a_swap_keeps_the_density_and_the_device_trains_on_under_its_own_mask(bench):
    before, counts = bench.theta().mask, {"conv1.weight": 7, "hidden.weight": 3}
    swapped = answer(bench, train(1), prune_and_grow(counts)).theta
    assert swapped.mask.counts == before.counts
    for layer in before:
        grown = set(swapped.mask.indices(layer)) - set(before.indices(layer))
        assert len(grown) == counts.get(layer, 0)
        assert not swapped.tensor(layer).reshape(-1)[list(grown)].any()
    trained = answer(bench, train(1), prune_and_grow(counts), train(1)).theta
    assert trained.mask == swapped.mask
    assert trained.version != swapped.version


def test_two_trainings_of_a_program_see_other_batches(bench, monkeypatch):
    seen, plain = [], bench.engine.train

    def spy(shard, rng_key, **options):
        seen.append(rng_key.generator("permutation").permutation(9).tolist())
        return plain(shard, rng_key, **options)

    monkeypatch.setattr(bench.engine, "train", spy)
    answer(bench, train(1), train(1))
    assert seen[0] != seen[1]


def test_dense_gradients_are_the_mean_over_the_batches_of_what_no_mask_has_touched(bench):
    totals, batches = {}, []

    def look(layer):
        def hook(gradient):
            totals[layer] = totals.get(layer, 0) + gradient.numpy().astype(np.float64)

        return bench.model.get_parameter(layer).register_hook(hook)

    hooks = [look(layer) for layer in bench.param_spec.prunable]
    hooks.append(bench.model.register_forward_hook(lambda *_: batches.append(1)))
    reply = answer(bench, train(2, sum_dense_gradients=True))
    for hook in hooks:
        hook.remove()
    assert len(batches) == 4
    assert reply.arrays.keys() == bench.param_spec.prunable.keys()
    for layer, found in reply.arrays.items():
        np.testing.assert_allclose(found, totals[layer] / 4, rtol=1e-4, atol=1e-7)
        assert found[~bench.theta().mask.array(layer)].any()
    assert answer(bench, train(2)).theta.version == reply.theta.version


def test_statistics_and_losses_stand_for_the_development_set():
    bench = lab(settings(selection={"development_ratio": 0.5}))
    arrays = pool_arrays(COUNTS)
    measured = answer(bench, bn_statistics(8), device=2, arrays=arrays)
    assert measured.samples == len(bench.shards[2].development) == 10
    assert {n: a.shape[0] for n, a in measured.arrays.items()} == dict.fromkeys(
        bench.param_spec.statistics, 2
    )
    scored = answer(bench, losses(), device=2, arrays=pool_arrays(COUNTS, measured.arrays))
    assert scored.samples == 10
    assert scored.arrays["losses"].shape == (2,)
    assert scored.theta is measured.theta is None


def test_losses_are_measured_under_the_statistics_of_the_request(bench):
    statistics = answer(bench, bn_statistics(8), arrays=pool_arrays(COUNTS)).arrays
    with_them = answer(bench, losses(), arrays=pool_arrays(COUNTS, statistics)).arrays["losses"]
    without = answer(bench, losses(), arrays=pool_arrays(COUNTS)).arrays["losses"]
    assert not np.array_equal(with_them, without)


def test_squares_stand_beside_the_means_in_place_of_the_variances(bench):
    plain = answer(bench, bn_statistics(8), arrays=pool_arrays(COUNTS)).arrays
    squares = answer(
        bench, bn_statistics(8, second_moment="square"), arrays=pool_arrays(COUNTS)
    ).arrays
    assert squares.keys() == {name.replace("running_var", "running_square") for name in plain}
    for norm, pixels in {"bn0": 64, "bn1": 16, "bn2": 16}.items():
        mean, values = plain[f"{norm}.running_mean"], 4 * pixels  # of four development samples
        biased = plain[f"{norm}.running_var"] * (values - 1) / values
        np.testing.assert_allclose(squares[f"{norm}.running_mean"], mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(squares[f"{norm}.running_square"], biased + mean**2, rtol=1e-4)


def test_an_unknown_verb_is_named_with_the_method_that_wants_it(bench):
    with pytest.raises(FedTinyError, match=r"cannot 'somersault', which method 'fedtiny' asks for"):
        answer(bench, Verb("somersault"))


class Shouting(Method):
    """A third party's method with device-side Python of its own."""

    name = "shouting"

    @staticmethod
    def shout(work, *, times):
        work.metrics["shouts"] = float(times)
        work.arrays["echo"] = np.full(times, len(work.shard), np.float32)
        work.samples = 77

    device_verbs = {"shout": shout}  # noqa: RUF012


def test_a_third_party_s_verb_is_found_through_its_method(bench, monkeypatch):
    known = {"fedtiny": Shouting}
    monkeypatch.setattr(methods, "find", known.__getitem__)
    reply = answer(bench, train(1), Verb("shout", {"times": 3}))
    assert reply.metrics["shouts"] == 3
    assert reply.arrays["echo"].tolist() == [9, 9, 9]
    assert reply.samples == 77
    assert reply.theta is not None


def test_a_third_party_cannot_replace_a_verb_that_engines_have(bench, monkeypatch):
    class Imposter(Method):
        name = "imposter"
        device_verbs = {"evaluate": lambda work: work.metrics.update(accuracy=1.0)}  # noqa: RUF012

    monkeypatch.setattr(methods, "find", {"fedtiny": Imposter}.__getitem__)
    assert "loss" in answer(bench, evaluate()).metrics
