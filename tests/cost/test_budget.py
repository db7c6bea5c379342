"""From memory to density."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.cost import DoesNotFit, Workload, fitting_summary, largest_density, memory, parse_size
from fedtiny.errors import ConfigError

from .tiny import GIVEN, config, tiny_network

OWN = GIVEN | {"model": tiny_network()}
WEIGHTS, LAYERS = 328, 2


@cache
def tiny(method):
    return Workload.of(config(method, 1.0), **OWN)


def needed(method, kept, memory_model):
    work = tiny(method).at(min(1.0, (kept + 1e-6) / WEIGHTS))
    assert work.kept == kept
    return memory.total(work, memory_model)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("3MB", 3_000_000),
        ("64 MB", 64_000_000),
        ("500kB", 500_000),
        ("500kb", 500_000),
        ("1.5GB", 1_500_000_000),
        (" .5 m ", 500_000),
        ("1MiB", 1 << 20),
        ("12345", 12_345),
        ("12345 B", 12_345),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MB", "3XB", "-3MB", "0", "0.1", "3 M B", "1e6", "nan", "3TB"]
)
def test_what_is_no_size(text):
    with pytest.raises(ConfigError, match="write for example 3MB"):
        parse_size(text)


@given(
    method=st.sampled_from(["fl_pqsu", "prunefl", "feddst", "fedtiny"]),
    memory_model=st.sampled_from(["paper", "device"]),
    kept=st.integers(LAYERS, WEIGHTS - 2),
    spare=st.integers(0, 40),
)
def test_one_weight_more_would_not_fit(method, memory_model, kept, spare):
    budget = needed(method, kept, memory_model) + spare
    density = largest_density(config(method), budget, memory_model, **OWN)
    found = tiny(method).at(density)
    assert memory.total(found, memory_model) <= budget
    if found.kept < WEIGHTS:
        assert needed(method, found.kept + 1, memory_model) > budget


@given(kept=st.integers(LAYERS, WEIGHTS - 1))
def test_the_paper_counts_so_evenly_that_the_density_comes_back(kept):
    budget = needed("snip", kept, "paper")
    if budget < 8 * 375:  # else the dense model fits, which needs no positions
        density = largest_density(config("snip"), budget, "paper", **OWN)
        assert tiny("snip").at(density).kept == kept


def test_three_megabytes_of_resnet18():
    density = largest_density(config("fedtiny", model="resnet18"), 3_000_000)
    assert density == pytest.approx(
        (3_000_000 - 1_050_000 - 8 * 16_458) / 14 / 11_157_504, rel=1e-5
    )
    work = Workload.of(config("fedtiny", density, model="resnet18"))
    assert 3_000_000 - 14 < memory.total(work, "paper") <= 3_000_000


def test_the_density_of_a_large_network_is_exact_to_a_weight():
    settings = config("fedtiny", model="vgg11")
    density = largest_density(settings, 400_000_000)
    work = Workload.of(replace(settings, density=density))
    assert 400_000_000 - 14 < memory.total(work, "paper") <= 400_000_000


def test_a_device_needs_more_than_the_paper_counts():
    settings = config("fedtiny", model="resnet18")
    with pytest.raises(DoesNotFit):
        largest_density(settings, 3_000_000, "device")
    assert 0.5 < largest_density(settings, 200_000_000, "device") < 1


def test_a_dense_model_that_fits_has_density_one():
    assert largest_density(config("fedavg"), 8 * 375, **OWN) == 1.0
    assert largest_density(config("fedtiny"), 8 * 375, **OWN) == 1.0


def test_the_least_budget_is_told():
    least = needed("fl_pqsu", LAYERS, "paper")
    with pytest.raises(ConfigError, match=f"needs at least {least} bytes"):
        largest_density(config("fl_pqsu"), least - 1, **OWN)
    assert largest_density(config("fl_pqsu"), least, **OWN) == pytest.approx(LAYERS / WEIGHTS)


def test_a_method_that_does_not_fit_has_a_row_without_costs():
    row = fitting_summary(config("fedavg", memory_budget="1kB"), **OWN)
    assert (row["density"], row["least_memory"]) == (None, 8 * 375)
    assert "needs at least 3,000 bytes" in row["notes"][0]
    row = fitting_summary(config("fedtiny", memory_budget="2kB"), **OWN)
    assert row["memory_paper"] <= 2_000
    assert row["density"] == largest_density(config("fedtiny"), 2_000, "paper", **OWN)


def test_the_small_model_grows_with_the_budget():
    settings = config("small_model", model="resnet18")
    density = largest_density(settings, 1_000_000)
    work = Workload.of(replace(settings, density=density))
    wider = Workload.of(replace(settings, density=1.1 * density))
    assert memory.total(work, "paper") <= 1_000_000 < memory.total(wider, "paper")


def test_the_least_budget_of_the_small_model_is_its_narrowest():
    """9 x (3 + 2 + 8) weights, 14 batch-norm parameters and a head of 5 x 10."""
    with pytest.raises(DoesNotFit, match=f"at least {8 * 181:,} bytes"):
        largest_density(config("small_model", model="resnet18"), 1_000)
    least = largest_density(config("small_model", model="resnet18"), 8 * 181)
    assert 181 / 11_173_962 < least < 532 / 11_173_962  # 532 has the next
