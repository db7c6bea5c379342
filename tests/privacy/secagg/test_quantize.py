"""Numbers of the ring: their sum never overflows, and is the mean within a stated error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.privacy.secagg.quantize import RING_BITS, Scales, followed

from .parties import refusal


def summed(numbers):
    """As the ring adds, and as whole numbers do."""
    ring = np.sum(numbers, axis=0, dtype=np.uint32)
    whole = np.sum(np.array(numbers, dtype=object), axis=0)
    assert all(int(one) == int(other) for one, other in zip(ring, whole, strict=True))
    return ring


@given(
    seed=st.integers(0, 2**32 - 1),
    devices=st.integers(1, 40),
    bound=st.sampled_from([1e-8, 0.3, 1.0, 64.0, 1e30]),
    spread=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    heaviest=st.sampled_from([1, 7, 5000, 1_000_000]),
)
def test_a_sum_never_overflows_and_is_the_mean(seed, devices, bound, spread, heaviest):
    draw = np.random.default_rng(seed)
    scales = Scales((4, 2), (bound, 2 * bound), heaviest, devices)
    values = draw.uniform(-spread, spread, (devices, 6)) * bound
    weights = draw.integers(1, heaviest + 1, devices)
    numbers = [
        scales.quantized(own, int(weight), draw)
        for own, weight in zip(values, weights, strict=True)
    ]
    mean = scales.mean(summed(numbers), devices)
    limits = np.array([bound] * 4 + [2 * bound] * 2)
    exact = np.average(np.clip(values, -limits, limits), axis=0, weights=weights)
    allowed = scales.error(devices, int(weights.sum())) + 1e-12 * limits
    assert (np.abs(mean.values - exact) <= allowed).all()
    assert mean.weight == weights.sum()
    clipped = [bool((np.abs(values[:, :4]) > bound).any()), False]
    clipped[1] = bool((np.abs(values[:, 4:]) > 2 * bound).any())
    assert list(map(bool, mean.clipped)) == clipped


def test_the_largest_values_of_all_devices_fit():
    scales = Scales((3,), (1.0,), 10, 1023)
    assert scales.levels >= 2**22
    draw = np.random.default_rng(0)
    numbers = [scales.quantized(np.ones(3), 10, draw) for _ in range(1023)]
    mean = scales.mean(summed(numbers), 1023)
    assert np.allclose(mean.values, 1.0)


def test_rounding_is_right_on_average():
    scales = Scales((1,), (1.0,), 1, 2**14)
    draw = np.random.default_rng(0)
    value = np.array([0.123456])
    found = [scales.quantized(value, 1, draw)[0] for _ in range(4000)]
    exact = (0.123456 + 1) * scales.levels / 2
    assert len(set(found)) == 2
    assert np.mean(found) == pytest.approx(exact, abs=5 * 0.5 / np.sqrt(4000))


def test_what_does_not_fit_is_refused():
    assert f"{RING_BITS} bits" in refusal(lambda: Scales((1,), (1.0,), 2**30, 4))
    assert "not above zero" in refusal(lambda: Scales((1,), (0.0,), 1, 4))
    assert "not above zero" in refusal(lambda: Scales((1,), (np.inf,), 1, 4))
    scales, draw = Scales((1,), (1.0,), 5, 4), np.random.default_rng(0)
    for weight in (0, 6):  # which a refusal does not tell
        said = refusal(lambda weight=weight: scales.quantized(np.zeros(1), weight, draw))
        assert said == "a weight is not within what the terms allow"
    total = np.array([0, 0, 99], dtype=np.uint32)
    assert "a sum of weights of 99" in refusal(lambda: scales.mean(total, 4))


def test_bounds_follow():
    assert followed(16.0, near=True, clipped=False) == 16.0
    assert followed(16.0, near=False, clipped=False) == 8.0
    assert followed(16.0, near=True, clipped=True) == 64.0
