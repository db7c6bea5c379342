"""Every way to share out the weights stays within the budget and leaves no layer empty."""

import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedtiny.errors import ConfigError
from fedtiny.sparse.densities import (
    budget,
    erdos_renyi_kernel,
    floor_of,
    on_the_way,
    operations,
    uniform,
    uniform_noise,
    with_floor,
)

from .strategies import anatomies, anatomy_of, resnet18

RESNET18 = resnet18()
SIZES = np.array(list(RESNET18.sizes.values()))
ANY_DENSITY = st.floats(0.01, 1)


def noisy(param_spec, density, candidates=3, seed=0):
    return uniform_noise(param_spec, density, candidates, np.random.default_rng(seed))


METHODS = {
    "budget": budget,
    "uniform": uniform,
    "erdos_renyi_kernel": erdos_renyi_kernel,
    "uniform_noise": noisy,
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def flat(*sizes):
    return anatomy_of({f"layer{i}": (size,) for i, size in enumerate(sizes)})


def feasible(param_spec, density):
    return density * param_spec.prunable_count >= len(param_spec.sizes)


@pytest.mark.parametrize(
    ("density", "most"), [(1, 100), (0.5, 50), (0.29, 29), (0.299, 29), (0.07, 7), (0.02, 2)]
)
def test_the_budget_is_in_whole_weights(density, most):
    assert budget(flat(90, 10), density) == most


@every_method
@pytest.mark.parametrize("density", [0, -0.1, 1.0001, 2, np.nan, np.inf])
def test_a_density_outside_its_range_is_refused(method, density):
    with pytest.raises(ConfigError, match=r"density must lie in \(0, 1\], got"):
        method(flat(90, 10), density)


@every_method
def test_a_density_that_would_empty_a_layer_is_refused_with_the_least_that_works(method):
    three = flat(100, 50, 50)
    with pytest.raises(ConfigError, match=r"leaves 2 weights for 3 prunable.* at least 0\.015"):
        method(three, 0.01)
    method(three, 0.015)


@pytest.mark.parametrize("size", [3, 9, 81, 7001])
def test_the_density_a_refusal_names_works(size):
    with pytest.raises(ConfigError) as refusal:
        budget(flat(size), 0.5 / size)
    least = float(re.findall(r"[\d.e-]+", str(refusal.value))[-1])
    assert budget(flat(size), least) >= 1


@pytest.mark.parametrize(
    ("sizes", "density", "counts"),
    [
        ((10, 30), 0.25, [3, 7]),  # of 2.5 and 7.5 the first takes the weight left over
        ((10, 13, 17), 0.3, [3, 4, 5]),  # of 3, 3.9 and 5.1 the second
        ((2, 27, 31), 0.1, [1, 2, 3]),  # of 0.2, 2.7 and 3.1 the first, to have any
        ((10, 30), 1, [10, 30]),
        ((2, 98), 0.05, [1, 4]),
        ((2, 2, 96), 0.04, [1, 1, 2]),  # 0.08 of a weight becomes one, taken from the fullest
        ((2, 2, 96), 0.03, [1, 1, 1]),
        ((2,) * 8 + (20, 20), 0.25, [1] * 8 + [3, 3]),  # taken from both alike
    ],
)
def test_uniform_checked_by_hand(sizes, density, counts):
    assert uniform(flat(*sizes), density).tolist() == counts


@pytest.mark.parametrize(
    ("total", "counts"),
    [
        (12, [2, 10]),  # half the sums of dimensions, 4 and 20
        (24, [4, 20]),
        (54, [4, 50]),  # the first layer is full and the second takes the rest
        (104, [4, 100]),
    ],
)
def test_erdos_renyi_kernel_checked_by_hand(total, counts):
    param_spec = anatomy_of({"small": (2, 2), "large": (10, 10)})
    assert erdos_renyi_kernel(param_spec, total / 104).tolist() == counts


@pytest.mark.parametrize(
    ("kept", "counts"),
    [
        (21, [1, 5, 15]),  # a quarter of the sums of dimensions
        (126, [4, 31, 91]),  # of 6, 30 and 90 the first is capped at 4: 122 = 30.5 + 91.5
        (104, [4, 25, 75]),  # 100 left over are shared 1 to 3
        (504, [4, 100, 400]),  # and with two at their end the third takes all
    ],
)
def test_erdos_renyi_kernel_of_three_layers_one_capped(kept, counts):
    """Sums of dimensions 4, 20 and 60 (10 + 50), sizes 4, 100 and 500."""
    param_spec = anatomy_of({"tiny": (2, 2), "middle": (10, 10), "large": (10, 50)})
    density = kept / param_spec.prunable_count
    assert erdos_renyi_kernel(param_spec, density).tolist() == counts


def test_erdos_renyi_kernel_counts_the_sides_of_a_kernel():
    param_spec = anatomy_of({"conv": (16, 8, 3, 3), "linear": (16, 14)})  # sums 30 and 30
    first, second = erdos_renyi_kernel(param_spec, 60 / param_spec.prunable_count)
    assert (first, second) == (30, 30)


@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_erdos_renyi_kernel_of_resnet18_is_in_proportion(density):
    counts = erdos_renyi_kernel(RESNET18, density)
    sums = np.array([sum(shape) for shape in RESNET18.prunable.values()])
    below = counts < SIZES  # those not full
    expected = sums * counts[below].sum() / sums[below].sum()
    assert np.abs(counts - expected)[below].max() < 1


@pytest.mark.parametrize("method", [uniform, erdos_renyi_kernel, noisy])
@given(param_spec=anatomies(), density=ANY_DENSITY)
def test_totals_stay_within_the_budget_and_no_layer_is_empty(method, param_spec, density):
    assume(feasible(param_spec, density))
    counts = np.atleast_2d(method(param_spec, density))
    assert counts.dtype == np.int32
    assert (counts >= 1).all()
    assert (counts <= list(param_spec.sizes.values())).all()
    assert (counts.sum(axis=1) <= budget(param_spec, density)).all()


@pytest.mark.parametrize("method", [uniform, erdos_renyi_kernel])
@given(param_spec=anatomies(), density=ANY_DENSITY)
def test_the_budget_is_filled(method, param_spec, density):
    assume(feasible(param_spec, density))
    assert method(param_spec, density).sum() == budget(param_spec, density)


@pytest.mark.parametrize("density", [0.001, 0.0123, 0.1, 0.5, 0.987, 1])
def test_uniform_of_resnet18_is_even_to_the_weight(density):
    counts = uniform(RESNET18, density)
    assert np.abs(counts - density * SIZES).max() < 1
    assert counts.sum() == budget(RESNET18, density)


@given(anatomies(), ANY_DENSITY, st.integers(1, 4), st.integers(0, 9))
def test_noisy_totals_are_near_the_target_or_the_budget_itself(
    param_spec, density, candidates, seed
):
    assume(feasible(param_spec, density))
    counts = noisy(param_spec, density, candidates, seed)
    assert counts.shape == (candidates, len(param_spec.prunable))
    total = counts.sum(axis=1)
    near = total > 0.98 * density * param_spec.prunable_count
    assert (near | (total == budget(param_spec, density))).all()


@pytest.mark.parametrize("density", [0.001, 0.005, 0.01, 0.1, 0.5, 0.9, 1])
def test_noisy_totals_of_resnet18_are_near_the_target(density):
    totals = noisy(RESNET18, density, candidates=20).sum(axis=1) / RESNET18.prunable_count
    assert (totals > 0.98 * density).all()
    assert (totals <= density).all()


@pytest.mark.parametrize("density", [0.001, 0.005, 0.01, 0.1, 0.5])
def test_noise_is_within_half_the_density_and_uses_that_room(density):
    counts = noisy(RESNET18, density, candidates=50)
    share = (counts - density * SIZES) / (density * SIZES)
    rounding = 0.5 / (density * SIZES)
    floored = counts == 1
    assert (floored | (np.abs(share) <= 0.5 + rounding)).all()
    assert share.min() < -0.4
    assert share.max() > 0.4


def test_noise_is_independent_by_layer():
    counts = noisy(RESNET18, 0.01, candidates=50) / SIZES
    assert np.abs(np.corrcoef(counts[:, :6].T) - np.eye(6)).max() < 0.6


def test_candidates_differ_and_follow_the_seed():
    counts = noisy(RESNET18, 0.01, candidates=50, seed=1)
    assert len(np.unique(counts, axis=0)) == 50
    assert (counts == noisy(RESNET18, 0.01, candidates=50, seed=1)).all()
    assert (counts != noisy(RESNET18, 0.01, candidates=50, seed=2)).any()


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("sizes", "density"),
    [
        ((1,), 1),
        ((3,), 0.9),
        ((3, 3, 3), 0.34),
        ((1,) * 9 + (100,), 10 / 109),  # only one way to share out ten weights
        ((10,) * 60, 1),
        ((10**6,) * 60, 1),
        ((10**6,) * 60, 0.9),
    ],
)
def test_models_of_few_weights_and_densities_near_one_come_to_an_end(sizes, density):
    counts = noisy(flat(*sizes), density, candidates=50)
    total, most = counts.sum(axis=1), budget(flat(*sizes), density)
    assert ((total == most) | (total > 0.98 * density * sum(sizes))).all()
    assert (total <= most).all()


def test_a_pool_of_one_is_near_the_target_too():
    hundred = flat(*(10,) * 100)
    assert noisy(hundred, 0.97, candidates=1).sum() > 0.98 * 0.97 * 1000


def test_counts_on_the_way_fall_in_each_layer_at_its_own_rate():
    param_spec, final = flat(100, 10_000), np.array([100, 100], np.int32)
    assert on_the_way(param_spec, final, 0.0).tolist() == [100, 10_000]
    assert on_the_way(param_spec, final, 0.5).tolist() == [100, 1_000]
    assert on_the_way(param_spec, final, 1.0).tolist() == [100, 100]


@given(anatomies(), ANY_DENSITY, st.floats(0, 1))
def test_counts_on_the_way_never_exceed_the_density_on_the_way(param_spec, density, share):
    assume(feasible(param_spec, density))
    final = erdos_renyi_kernel(param_spec, density)
    counts = on_the_way(param_spec, final, share)
    reached = budget(param_spec, density) / param_spec.prunable_count
    assert counts.sum() <= param_spec.prunable_count * reached**share + 1e-6
    assert (counts >= final).all()
    assert on_the_way(param_spec, final, 1.0).tolist() == final.tolist()


def around_erk(density=0.01, **given):
    even = erdos_renyi_kernel(RESNET18, density)
    draw = np.random.default_rng(0)
    return even, uniform_noise(RESNET18, density, 30, draw, around=even, **given)


def test_noise_is_drawn_around_other_layer_budgets_too():
    even, counts = around_erk()
    share = counts / even - 1
    assert (np.abs(share) <= 0.5 + 0.5 / even).all()
    assert share.min() < -0.4
    assert share.max() > 0.4
    total = counts.sum(axis=1)
    assert (total > 0.98 * 0.01 * RESNET18.prunable_count).all()
    assert (total <= budget(RESNET18, 0.01)).all()


def test_no_candidate_takes_more_operations_than_the_budgets_without_noise():
    uses = {layer: 4 ** (4 - int(layer[5])) for layer in RESNET18.prunable}  # by stage
    price = operations(RESNET18, uses)
    even, counts = around_erk(uses=uses)
    assert (counts @ price <= even @ price).all()
    assert len(np.unique(counts, axis=0)) == 30, "there is still choice"
    free = around_erk()[1]
    assert (free @ price > even @ price).any(), "or this shows nothing"


def every(param_spec, floor):
    """The same floor for all layers."""
    return dict.fromkeys(param_spec.sizes, floor)


@pytest.mark.parametrize(
    ("floor", "counts"),
    [
        (0, [1, 5, 34]),
        (0.1, [1, 5, 34]),
        (0.3, [3, 5, 32]),  # of 5 and 34, 4.7 and 32.3 are left
        (0.5, [5, 5, 30]),  # the second would fall below its floor, and is raised too
        (1, [10, 10, 20]),
    ],
)
def test_layers_below_the_floor_are_raised_by_the_others(floor, counts):
    """Uniform are 10, 10 and 20."""
    spec = flat(100, 100, 200)
    found = with_floor(spec, 0.1, np.array([1, 5, 34], dtype=np.int32), every(spec, floor))
    assert found.tolist() == counts


def test_layers_without_a_floor_are_not_raised():
    spec = flat(100, 100, 200)
    first, second, _ = spec.sizes
    found = with_floor(spec, 0.1, np.array([1, 1, 38], dtype=np.int32), {first: 1.0})
    assert found.tolist() == [10, 1, 29]
    assert floor_of(spec, 0.1, {first: 1.0, second: 0.35}).tolist() == [10, 3, 1]


def test_a_floor_holds_beside_layers_of_one_weight():
    sizes = (4, 1, 1, 27, 3, 1, 244)
    counts = np.array([1, 1, 1, 5, 1, 1, 2], dtype=np.int32)
    found = with_floor(flat(*sizes), 0.0431422, counts, every(flat(*sizes), 0.99))
    assert found.sum() == 12
    assert found[-1] >= 5


@given(anatomies(), ANY_DENSITY, st.floats(0, 1), st.integers(0, 9))
def test_a_floor_keeps_the_total_and_holds_for_every_layer(param_spec, density, floor, seed):
    assume(feasible(param_spec, density))
    sizes, most = np.array([*param_spec.sizes.values()]), budget(param_spec, density)
    counts = np.ones(len(sizes), dtype=np.int32)
    for layer in np.random.default_rng(seed).permutation(len(sizes)):  # all into a few layers
        counts[layer] += min(sizes[layer] - 1, most - counts.sum())
    found = with_floor(param_spec, density, counts, every(param_spec, floor))
    even = uniform(param_spec, density)
    assert found.dtype == np.int32
    assert found.sum() == counts.sum() == most
    assert (found >= np.maximum(1, np.floor(floor * even))).all()
    assert (found <= sizes).all()
    above = counts >= even
    assert (found[above] <= counts[above]).all(), "nobody above gains"
