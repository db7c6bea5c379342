"""Budgets of memory and FLOPs together: the order of what is solved, by hand and by trial."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedtiny
from fedtiny.config import parse_flops
from fedtiny.cost import DoesNotFit, Workload, fitted, fitting_summary, flops, memory, summary
from fedtiny.cost.budgets import BETAS
from fedtiny.cost.workload import layer_flow_of
from fedtiny.errors import ConfigError
from fedtiny.sparse.flow import LayerFlow

from ..devices.tiny import seeded
from .tiny import GIVEN, config, tiny_network

OWN = GIVEN | {"model": seeded(tiny_network)}
FLOW = Workload.of(config(), **OWN).flow
OWN |= {"flow": FLOW}  # measured once for all tests
WEIGHTS, IMAGES = 328, 40
FIXED, DENSE = 288 + 15, 288 + 8 * 16 + 320 + 15  # multiply-adds of an image


def of(method="fl_pqsu", density=1.0, budgets="uniform", beta=0.5, **changes):
    pruning = {"budgets": budgets, "flow_beta": beta, "iterations": 5}
    return config(method, density, pruning=pruning, **changes)


def plain(asked):
    return flops.plain(Workload.of(asked, **OWN))


def by_hand(convolution, linear):
    """FLOPs of a plain round: three passes of two FLOPs a multiply-add."""
    return 3 * 2 * IMAGES * (FIXED + 16 * convolution + linear)


@pytest.mark.parametrize(
    ("text", "found"),
    [("2%", 20), ("100 %", 1000), (".5%", 5), ("1.5e12", 1.5e12), ("1e+3", 1000), ("40G", 4e10)],
)
def test_budgets_of_flops(text, found):
    assert parse_flops(text, 1000) == found


@pytest.mark.parametrize("text", ["", "%", "0%", "0.02", "two", "-2%", "2%%", "1e99", "5XB"])
def test_what_is_no_budget_of_flops(text):
    with pytest.raises(ConfigError, match="as 2%, or FLOPs of a round"):
        parse_flops(text, 1000)


@pytest.mark.parametrize(
    ("density", "budgets", "kept"),
    [
        (0.5, "uniform", (4, 160)),
        (42 / 328, "uniform", (1, 41)),
        (84 / 328, "erk", (8, 76)),  # sums of dimensions 8 and 69, so 8.7 and 75.3: one is full
    ],
)
def test_flops_of_layer_budgets_by_hand(density, budgets, kept):
    counts = Workload.of(of(density=density, budgets=budgets), **OWN).mask.counts
    assert tuple(counts.values()) == kept
    assert plain(of(density=density, budgets=budgets)) == by_hand(*kept)


def test_flops_alone_lower_the_density_by_hand():
    """(1, 41) takes 360 of 751 multiply-adds, and with one weight more (1, 42) 361."""
    found = fitted(of(flops_budget=str(by_hand(1, 41))), **OWN)
    assert round(found.density * WEIGHTS) == 42
    assert plain(found) == by_hand(1, 41)
    assert fitted(of(density=0.1, flops_budget="99%"), **OWN).density == 0.1, "never raised"


@settings(max_examples=25)
@given(share=st.floats(43, 100), budgets=st.sampled_from(["uniform", "erk"]))
def test_one_weight_more_would_take_too_many_flops(share, budgets):
    asked = of(budgets=budgets, flops_budget=f"{share:.4f}%")
    limit = int(float(f"{share:.4f}") / 100 * by_hand(8, 320))
    found = fitted(asked, **OWN)
    assert plain(found) <= limit
    kept = Workload.of(found, **OWN).kept
    if kept < WEIGHTS:
        assert plain(replace(found, density=min(1.0, (kept + 1 + 1e-6) / WEIGHTS))) > limit


def test_memory_and_flops_are_both_kept_and_one_of_them_is_reached():
    for share in (45, 60, 90):
        asked = of(memory_budget="2kB", flops_budget=f"{share}%")
        found, work = fitted(asked, **OWN), Workload.of(fitted(asked, **OWN), **OWN)
        assert memory.total(work, "paper") <= 2_000
        assert flops.plain(work) <= share / 100 * flops.dense_round(work)
        alone = [fitted(replace(asked, **one), **OWN).density for one in UNLIMITED]
        assert found.density == min(alone)


UNLIMITED = ({"memory_budget": None}, {"flops_budget": None})


@pytest.mark.parametrize("share", [55, 57, 59, 61])
def test_flow_takes_the_most_operations_that_fit(share):
    asked = of(density=0.2, budgets="flow", flops_budget=f"{share}%")
    found = fitted(asked, **OWN)
    limit = share / 100 * by_hand(8, 320)
    steps = round(found.pruning.flow_beta * BETAS)
    assert found.pruning.flow_beta * BETAS == steps
    assert found.density == 0.2
    assert plain(found) <= limit
    if steps:
        assert plain(of(density=0.2, budgets="flow", beta=(steps - 1) / BETAS)) > limit


def test_with_room_for_all_operations_beta_is_zero_whatever_was_asked():
    asked = of(density=0.2, budgets="flow", beta=0.8, flops_budget="99%")
    assert fitted(asked, **OWN).pruning.flow_beta == 0
    assert fitted(replace(asked, flops_budget=None), **OWN).pruning.flow_beta == 0.8


def test_where_beta_one_is_too_much_the_density_falls():
    """Half of the weights take more than 74% at any beta, which stays at its end."""
    asked = of(density=0.5, budgets="flow", flops_budget="55%")
    found = fitted(asked, **OWN)
    assert found.pruning.flow_beta == 1
    assert found.density < 0.5
    limit, kept = 0.55 * by_hand(8, 320), round(found.density * WEIGHTS)
    assert plain(found) <= limit
    more = replace(found, density=(kept + max(1, kept // 100)) / WEIGHTS)
    assert plain(more) > limit, "the density is the largest, to one in a hundred"


def test_memory_sets_the_density_of_flow_before_beta_is_walked():
    asked = of(density=0.9, budgets="flow", memory_budget="2kB", flops_budget="55%")
    found = fitted(asked, **OWN)
    alone = fitted(replace(asked, flops_budget=None), **OWN)
    assert found.density <= alone.density
    assert memory.total(Workload.of(found, **OWN), "paper") <= 2_000
    assert plain(found) <= 0.55 * by_hand(8, 320)


def test_solving_again_changes_nothing():
    for budgets in ("uniform", "erk", "flow"):
        asked = of(density=0.5, budgets=budgets, memory_budget="2kB", flops_budget="52%")
        once = fitted(asked, **OWN)
        assert fitted(once, **OWN) == once


def test_a_device_cuts_its_batch_where_no_density_fits():
    asked = of("fedtiny", 0.3, memory_model="device")
    needed = memory.total(Workload.of(asked, **OWN), "device")
    fits = fitted(replace(asked, memory_budget=str(needed)), **OWN)
    assert (fits.train.batch_size, round(fits.density * WEIGHTS)) == (8, 98), "density first"
    least = memory.total(Workload.of(replace(asked, density=2 / WEIGHTS), **OWN), "device")
    cut = fitted(replace(asked, memory_budget=str(least - 1)), **OWN)
    batch = cut.train.batch_size
    assert (cut.density, 2 <= batch < 8) == (0.3, True)
    assert memory.total(Workload.of(cut, **OWN), "device") < least
    more = replace(cut, train=replace(cut.train, batch_size=batch + 1))
    assert memory.total(Workload.of(more, **OWN), "device") >= least


def test_at_the_smallest_batch_the_density_falls_and_then_the_least_is_told():
    asked = of("fedtiny", 1.0, memory_model="device")
    smallest = replace(asked, train=replace(asked.train, batch_size=2))
    dense, bare = (
        memory.total(Workload.of(replace(smallest, density=d), **OWN), "device")
        for d in (1.0, 2 / WEIGHTS)
    )
    found = fitted(replace(asked, memory_budget=str((dense + bare) // 2)), **OWN)
    assert (found.train.batch_size, found.density < 1) == (2, True)
    with pytest.raises(DoesNotFit, match=f"at least {bare:,} bytes of memory .--memory-model dev"):
        fitted(replace(asked, memory_budget=str(bare - 1)), **OWN)


def test_the_least_flops_are_told():
    least = by_hand(1, 1)
    with pytest.raises(DoesNotFit, match=f"at least {least:,} FLOPs in a plain round, 42.6% of"):
        fitted(of(flops_budget="40%"), **OWN)
    with pytest.raises(DoesNotFit, match=f"at least {least:,} FLOPs"):
        fitted(of(budgets="flow", flops_budget="40%"), **OWN)
    row = fitting_summary(of("fedavg", flops_budget="90%"), **OWN)
    assert (row["density"], row["least_flops"]) == (None, by_hand(8, 320))


def test_a_threshold_over_scores_of_a_run_to_come_has_no_flops_yet():
    with pytest.raises(ConfigError, match=r"choose --pruning\.budgets uniform, erk or flow"):
        fitted(of("snip", budgets="global", flops_budget="50%"), **OWN)
    with pytest.raises(ConfigError, match="ssfl sets one threshold"):
        fitted(of("ssfl", flops_budget="50%"), **OWN)
    fitted(of("fl_pqsu", budgets="global", flops_budget="50%"), **OWN)
    for asked in (of("snip", budgets="global"), of("ssfl")):
        assert any("one threshold" in note for note in summary(asked, **OWN)["notes"])
    assert not any("one threshold" in note for note in summary(of("snip"), **OWN)["notes"])


def test_the_adjusting_rounds_of_a_method_are_not_counted():
    assert plain(of("fedtiny", 0.5)) == plain(of("fl_pqsu", 0.5)) == plain(of("prunefl", 0.5))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_curve_is_walked_roughly_first(share):
    """A trial with all iterations is dear; on a smooth curve there are at most four of them."""
    asked = fedtiny.Config(method="fedtiny_flow", density=0.02)
    asked = replace(asked, pruning=replace(asked.pruning, budgets="flow"))
    network, trials = layer_flow_of(asked), []
    sizes = np.array([*network.param_spec.sizes.values()])

    def prune(prices, totals):
        """Where few iterations do not see all of the price."""
        trials.append(len(totals))
        wanted = sizes / np.array(prices) ** (1 - 1 / len(totals))
        return np.clip(wanted * totals[-1] / wanted.sum(), 1, sizes).astype(int)

    def flow():
        return LayerFlow(network.param_spec, network.uses, lambda: prune)

    def needed(step):
        pruning = replace(asked.pruning, flow_beta=step / BETAS)
        return flops.plain(Workload.of(replace(asked, pruning=pruning), flow=flow()))

    limit = int(needed(0) ** (1 - share) * needed(BETAS) ** share)
    trials.clear()
    found = fitted(replace(asked, flops_budget=str(limit)), flow=flow())
    assert (trials.count(100) <= 4, trials.count(10) <= 6, len(set(trials))) == (True, True, 2)
    step = round(found.pruning.flow_beta * BETAS)
    assert needed(step) <= limit < needed(step - 1)
