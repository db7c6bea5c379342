"""Training on the GPU's engine against the reference engine, in fp32 on a CPU."""

import gc
from weakref import ref

import numpy as np
import pytest
import torch

from fedtiny.devices.engine import RngKey
from fedtiny.devices.gpu import engine as gpu_engine
from fedtiny.devices.gpu import step as steps
from fedtiny.devices.gpu.network import Network
from fedtiny.devices.node import answer
from fedtiny.errors import DataError, FedTinyError
from fedtiny.federation.messages import evaluate, prune_and_grow, top_gradients, train
from fedtiny.randomness import BEFORE_ROUNDS, SERVER

from ..tiny import TinyNet, everything, lab, seeded, settings
from .rig import NEAR, NETWORKS, answers, assert_near, both, engine_of, order

OPTIMIZERS = ["adam", "sgd"]


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_is_the_reference_s_but_for_rounding(optimizer, epochs, channels_last):
    bench = lab(settings(train={"optimizer": optimizer}))
    request = order(bench, train(epochs))
    theirs, ours = answers(bench, request, device=2, channels_last=channels_last)
    assert_near(ours, theirs)
    moved = np.abs(ours.theta.vector - request.theta.vector)
    assert np.median(moved) > 50 * NEAR["atol"], "or this shows nothing"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_extrusion_with_fedprox_after_the_rate_fell_is_the_reference_s(optimizer):
    schedule = {"lr_schedule": "steps", "lr_gamma": 0.2, "proximal_mu": 0.5}
    bench = lab(settings(rounds=4, train={"optimizer": optimizer, **schedule}))
    extruding = train(2, extrude={"conv1.weight": 20, "hidden.weight": 30})
    theirs, ours = answers(bench, order(bench, extruding, round=3), device=2)
    assert_near(ours, theirs)
    plain, _ = answers(bench, order(bench, train(2), round=3), device=2)
    weights = slice(bench.theta().mask.count)
    moved, usually = (
        np.abs((reply.theta.vector - bench.theta().vector)[weights]).mean()
        for reply in (theirs, plain)
    )
    assert moved > 1.5 * usually, "at a raised rate"


@pytest.mark.parametrize("kind", ["tiny", "plain", "own"])
def test_laid_out_as_on_the_reference_gradients_are_the_reference_s_to_the_last_bit(kind):
    bench = lab(model=seeded(NETWORKS[kind]), sizes=(4, 12))
    request = order(bench, train(1, sum_dense_gradients=True))
    theirs, ours = answers(bench, request, channels_last=False)
    for name, values in theirs.arrays.items():
        assert np.array_equal(ours.arrays[name], values), name


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_any_network_trains_as_on_the_reference(kind, optimizer):
    bench = lab(settings(train={"optimizer": optimizer}), model=seeded(NETWORKS[kind]))
    theirs, ours = answers(bench, order(bench, train(2)), device=2)
    assert_near(ours, theirs)


@pytest.mark.parametrize("density", [0.0, 1.0])
def test_a_mask_may_keep_all_or_nothing(density):
    bench = lab()
    theirs, ours = answers(bench, order(bench, train(2), theta=bench.theta(density)))
    assert_near(ours, theirs)


@pytest.mark.parametrize("epochs", [1, 2])
def test_full_gradients_are_summed_up_as_on_the_reference(epochs):
    bench = lab()
    request = order(bench, train(epochs, sum_dense_gradients=True))
    theirs, ours = answers(bench, request, device=2)
    assert_near(ours, theirs)
    assert ours.arrays.keys() == set(bench.param_spec.prunable)
    pruned = ~request.theta.mask.array("conv2.weight")
    assert np.count_nonzero(ours.arrays["conv2.weight"][pruned]) > 100


def test_full_gradients_of_one_training_are_not_those_of_the_one_before():
    bench = lab()
    engine, request = engine_of(bench), order(bench, train(1, sum_dense_gradients=True))
    first, again = (answer(engine, request, bench.shards[0], 0) for _ in range(2))
    assert everything(first) == everything(again)


def test_two_trainings_with_a_swap_between_are_the_reference_s():
    bench = lab()
    counts = {"conv1.weight": 9, "conv2.weight": 20, "hidden.weight": 3}
    request = order(bench, train(1), prune_and_grow(counts), train(1))
    theirs, ours = answers(bench, request, device=2)
    assert_near(ours, theirs)
    assert ours.theta.mask != request.theta.mask


@pytest.mark.parametrize("samples", [2, 3])
def test_a_device_smaller_than_a_batch_trains_on_one_batch_of_all(samples):
    bench = lab(sizes=(samples, 12))
    request = order(bench, train(3))
    theirs, ours = answers(bench, request)
    assert_near(ours, theirs, rtol=1e-3, atol=1e-4)  # batch norm over so few is touchy


def test_small_devices_and_large_ones_take_turns_on_one_engine():
    bench = lab(sizes=(3, 12, 2, 12))
    reference, engine = both(bench)
    request = order(bench, train(1))
    for device in (1, 0, 3, 2, 1, 0):
        theirs, ours = (answer(e, request, bench.shards[device], 0) for e in (reference, engine))
        assert_near(ours, theirs, rtol=1e-3, atol=1e-4)


def test_of_the_steps_of_small_devices_only_the_last_is_kept():
    bench = lab(settings(train={"batch_size": 8}), sizes=(3, 16, 2, 5, 16))
    engine, held = engine_of(bench), []
    plain, summing = (order(bench, train(1, sum_dense_gradients=s)) for s in (False, True))
    for device, request in ((1, plain), (0, plain), (2, plain), (1, summing), (3, summing)):
        answer(engine, request, bench.shards[device], 0)
        held.append([(kind.batch, kind.sums) for kind, _ in engine._steps])
    usual = [(8, False), (8, True)]
    assert held[:3] == [usual[:1], [usual[0], (3, False)], [usual[0], (2, False)]]
    assert sorted(held[3]) == sorted([*usual, (2, False)])
    assert held[4] == [*usual, (5, True)]


def test_what_a_forgotten_step_held_is_given_back_at_once():
    bench = lab(sizes=(3, 2))
    engine, request = engine_of(bench), order(bench, train(1))
    gc.disable()
    try:
        answer(engine, request, bench.shards[0], 0)
        state = [ref(step.update.first) for step in engine._steps.values()]
        answer(engine, request, bench.shards[1], 0)
        assert [held() for held in state] == [None]
    finally:
        gc.enable()


@pytest.mark.parametrize("planned", [1, 2, 5])
def test_more_steps_than_are_planned_at_a_time_change_nothing(monkeypatch, planned):
    bench = lab()
    request = order(bench, train(3, sum_dense_gradients=True))
    whole = answer(engine_of(bench), request, bench.shards[2], 0)
    monkeypatch.setattr(steps, "PLANNED", planned)
    pieces = answer(engine_of(bench), request, bench.shards[2], 0)
    assert everything(pieces) == everything(whole)


def test_no_epochs_change_nothing():
    bench = lab()
    theirs, ours = answers(bench, order(bench, train(0)))
    assert ours.theta.version == theirs.theta.version == bench.theta().version
    assert ours.metrics == theirs.metrics


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_optimizer_starts_afresh_every_time(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}))
    used, fresh = engine_of(bench), engine_of(bench)
    halfway = answer(used, order(bench, train(2)), bench.shards[2], 0).theta
    second = order(bench, train(2), theta=halfway, round=1)
    ours, theirs = (answer(engine, second, bench.shards[2], 0) for engine in (used, fresh))
    assert everything(ours) == everything(theirs)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_growing_dropping_bigger_and_smaller_masks_leave_no_trace(optimizer):
    bench = lab(settings(train={"optimizer": optimizer}))
    used = engine_of(bench)
    for density, seed in ((0.2, 0), (0.2, 1), (0.7, 2), (0.1, 3), (1.0, 4), (0.3, 5)):
        request = order(bench, train(1), theta=bench.theta(density, seed))
        ours, theirs = (
            answer(engine, request, bench.shards[0], 0) for engine in (used, engine_of(bench))
        )
        assert everything(ours) == everything(theirs)


def test_a_mask_of_the_same_size_makes_no_new_step(monkeypatch):
    made, really = [], gpu_engine.Step

    def counted(*given):
        made.append(given[0])
        return really(*given)

    monkeypatch.setattr(gpu_engine, "Step", counted)
    bench = lab()
    engine, theta = engine_of(bench), bench.theta(0.3)
    gradients = {n: np.setdiff1d(np.arange(s), theta.mask.indices(n)) for n, s in sizes(bench)}
    grown = {n: np.r_[theta.mask.indices(n)[1:], gradients[n][:1]] for n, _ in sizes(bench)}
    other = theta.remasked(theta.mask.replace({n: np.sort(p) for n, p in grown.items()}))
    for each in (theta, other, theta, bench.theta(0.1), other):
        answer(engine, order(bench, train(1), theta=each), bench.shards[0], 0)
    assert [kind.batch for kind in made] == [4]
    answer(engine, order(bench, train(1), theta=bench.theta(0.9)), bench.shards[0], 0)
    assert len(made) == 2, "a bigger mask needs new buffers"


def sizes(bench):
    return bench.param_spec.sizes.items()


def test_a_device_s_training_does_not_depend_on_who_trained_before():
    bench = lab(model=seeded(TinyNet, 0.5))
    request, engines = order(bench, train(2)), (engine_of(bench), engine_of(bench))
    first = [answer(engines[0], request, bench.shards[k], 0) for k in (0, 1)]
    torch.manual_seed(99)  # nor on the process's own generator
    second = [answer(engines[1], request, bench.shards[k], 0) for k in (1, 0)]
    assert [*map(everything, first)] == [*map(everything, second)][::-1]


def test_training_leaves_the_process_s_generator_alone():
    bench = lab(model=seeded(TinyNet, 0.5))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    program = train(1), top_gradients({"conv1.weight": 2})
    answer(engine_of(bench), order(bench, *program), bench.shards[0], 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_warm_up_changes_no_answer():
    bench = lab()
    request = order(bench, train(1), evaluate())
    plain, warm = engine_of(bench), engine_of(bench)
    warm.warm_up(bench.theta(0.5, seed=7), bench.data.train)
    replies = [answer(engine, request, bench.shards[0], 0) for engine in (plain, warm)]
    assert everything(replies[0]) == everything(replies[1])


@pytest.mark.parametrize(("dtype", "networks"), [(torch.bfloat16, 2), (torch.float32, 1)])
def test_after_a_warm_up_no_buffer_of_a_network_is_made(monkeypatch, dtype, networks):
    made, really = [], Network.reserve
    monkeypatch.setattr(
        Network, "reserve", lambda self, kept: really(self, kept) and (made.append(self) or True)
    )
    bench = lab()
    engine = engine_of(bench, dtype=dtype)
    engine.warm_up(bench.theta(), bench.data.train)
    assert len({*made}) == networks
    warm = len(made)
    program = train(1), train(1, sum_dense_gradients=True), top_gradients({"conv1.weight": 2})
    answer(engine, order(bench, *program, evaluate()), bench.shards[0], 0)
    assert len(made) == warm, "the first lane shows all that a lane takes"


# What goes wrong


def test_divergence_names_the_device_and_the_round():
    bench = lab(settings(train={"optimizer": "sgd", "lr": 1e30}))
    engine = engine_of(bench)
    engine.load(bench.theta())
    with pytest.raises(FedTinyError, match=r"diverged on device 1 in round 8.*lower --train\.lr"):
        engine.train(bench.shards[1], RngKey(0, round=7, device=1), epochs=3)
    with pytest.raises(FedTinyError, match="on the server's public set"):
        engine.train(bench.shards[1], RngKey(0, BEFORE_ROUNDS, SERVER), epochs=3)


def test_an_engine_that_diverged_works_again():
    bench = lab(settings(train={"optimizer": "sgd", "lr": 1e30}))
    engine = engine_of(bench)
    with pytest.raises(FedTinyError, match="diverged"):
        answer(engine, order(bench, train(3)), bench.shards[1], 0)
    request = order(bench, evaluate(), top_gradients({"conv1.weight": 5}))
    ours, theirs = (answer(e, request, bench.shards[1], 0) for e in (engine, engine_of(bench)))
    assert everything(ours) == everything(theirs)


def test_a_device_of_one_sample_cannot_train():
    bench = lab(sizes=(1, 12))
    with pytest.raises(DataError, match="at least two samples"):
        answer(engine_of(bench), order(bench, train(1)), bench.shards[0], 0)
