"""Noise in shares is exactly what is accounted for."""

import hashlib
from math import exp, pi, sqrt

import numpy as np
import pytest

from fedtiny.errors import SecureAggregationError
from fedtiny.privacy.secagg import discrete_gaussian
from fedtiny.privacy.secagg.ciphers import KeyStream
from fedtiny.privacy.secagg.discrete_gaussian import draw
from fedtiny.privacy.secagg.graph import degree, fewest_summed, threshold
from fedtiny.privacy.secagg.noise_shares import LEAST_BITS, NoiseShares
from fedtiny.privacy.secagg.quantize import Scales

DRAWS = 100_000


def seed(*named):
    return hashlib.sha256(repr(named).encode()).digest()


def chances(deviation, reach=None):
    """Exact probabilities of a discrete Gaussian from -reach to reach."""
    places = np.arange(-(reach or 12 * deviation), (reach or 12 * deviation) + 1)
    found = np.exp(-(places**2) / (2 * deviation**2))
    return places, found / found.sum()


def assert_distributed(drawn, places, expected):
    """Pearson's chi-square of counts, cells of fewer than 10 joined, within five deviations."""
    counts = np.array([(drawn == place).sum() for place in places])
    assert counts.sum() == len(drawn)
    many = expected * len(drawn) >= 10
    counts = np.append(counts[many], counts[~many].sum())
    expected = np.append(expected[many], expected[~many].sum()) * len(drawn)
    statistic = ((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    freedom = len(counts) - 1
    assert statistic < freedom + 5 * sqrt(2 * freedom), (statistic, freedom)


@pytest.mark.parametrize("bits", [0, 1, 2, 4])
def test_numbers_are_discrete_gaussian(bits):
    assert_distributed(draw(DRAWS, bits, seed("chi-square", bits)), *chances(2**bits))


def test_another_distribution_would_be_found():
    """The same statistic against a deviation that is three percent off."""
    drawn = draw(DRAWS, 4, seed("chi-square", 4))
    places = np.arange(-192, 193)
    for other in (15.5, 16.5):
        weights = np.exp(-(places**2) / (2 * other**2))
        with pytest.raises(AssertionError):
            assert_distributed(drawn, places, weights / weights.sum())


@pytest.mark.parametrize("bits", [6, 24])
def test_wide_ones_are_as_good_as_gaussian(bits):
    scaled = draw(DRAWS, bits, seed("moments", bits)) / 2**bits
    error = 5 / sqrt(DRAWS)
    assert abs(scaled.mean()) < error
    assert abs(scaled.std() - 1) < error
    assert abs((scaled**4).mean() - 3) < sqrt(96) * error
    assert abs(np.mean(np.abs(scaled) > 1.959964) - 0.05) < sqrt(0.05) * error
    assert len(set(draw(1000, 24, seed("low bits")) % 256)) > 240


@pytest.mark.parametrize("x", [0.0, 0.25, 0.5, 1.0])
def test_a_chance_is_exact(x):
    stream, many = KeyStream(seed("chance", x)), DRAWS
    numerators = np.full(many, int(x * 2**49), np.uint64)
    found = discrete_gaussian._decays(numerators, 49, stream).mean()
    assert abs(found - exp(-x)) <= 5 * sqrt(exp(-x) * (1 - exp(-x)) / many)


def test_a_sum_of_shares_is_as_it_should_be():
    """By convolution of the exact probabilities; and close to one discrete Gaussian (theorem 5)."""
    _, own = chances(1)
    total = own
    for _ in range(3):
        total = np.convolve(total, own)
    reach = len(total) // 2
    drawn = sum(draw(DRAWS, 0, seed("share", device)) for device in range(4))
    assert_distributed(drawn, np.arange(-reach, reach + 1), total)
    _, single = chances(2, reach)
    likely = single > 1e-12
    apart = np.abs(np.log(total[likely] / single[likely])).max()
    assert 0 < apart <= tau(1, 4)


def tau(deviation, devices):
    """How far a sum of discrete Gaussians is from one (Kairouz, Liu and Steinke, theorem 5)."""
    steps = range(1, devices)
    return 10 * sum(exp(-2 * pi**2 * deviation**2 * k / (k + 1)) for k in steps)


def test_shares_are_wide_enough_that_the_sum_is_one_discrete_gaussian():
    assert tau(2**LEAST_BITS, 10**4) * 10**9 == 0.0


@pytest.mark.parametrize("order", [2, 3, 7])
def test_at_whole_orders_it_tells_exactly_what_a_gaussian_tells(order):
    """So that the accountant of Gaussians is right: moments of the loss at a shift of 3 steps."""
    deviation, shift, reach = 4.0, 3, 200
    places = np.arange(-reach, reach + 1)
    own = -(places**2) / (2 * deviation**2)
    shifted = -((places - shift) ** 2) / (2 * deviation**2)
    moment = np.exp(order * shifted + (1 - order) * own).sum() / np.exp(own).sum()
    assert moment == pytest.approx(exp(order * (order - 1) * shift**2 / (2 * deviation**2)))


@pytest.mark.parametrize(
    ("multiplier", "devices", "least"),
    [(1.0, 3, 3), (0.1, 20, 8), (0.66, 1000, 15), (5.0, 6, 4), (100.0, 10, 4)],
)
def test_the_fewest_have_the_noise_that_was_asked_for(multiplier, devices, least):
    found = NoiseShares(multiplier, devices, least)
    clip = found.levels / 2
    assert multiplier <= 2**found.bits * sqrt(least) / clip < multiplier * 1.001
    assert devices * found.levels + 2 * found.margin < 2**32
    assert found.bits == 24 or devices * found.levels + 2 * found.margin > 2**30


def test_what_does_not_fit_the_ring_is_refused():
    with pytest.raises(SecureAggregationError, match=r"--privacy\.noise server"):
        _ = NoiseShares(0.001, 10**5, 15).levels


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_noise_never_wraps_around(value):
    """All devices at the end of the range: the sum is theirs, and noise as wide as asked for."""
    shares = NoiseShares(2.0, 20, 8)
    scales = Scales((2000,), (0.5,), 1, 20, reports=False, noise=shares)
    total = np.zeros(scales.count, np.uint32)
    for device in range(20):
        numbers = scales.quantized(np.full(2000, value / 2), 1, np.random.default_rng(device))
        total += scales.noisy(numbers, seed("device", device, value))
    found = scales.mean(total, 20).values * 20 - 20 * value / 2
    expected = 2.0 * 0.5 * sqrt(20 / 8)
    assert found.std() == pytest.approx(expected, rel=5 / sqrt(4000))
    assert abs(found.mean()) < 5 * expected / sqrt(2000)
    assert np.abs(found).max() < 6 * expected


@pytest.mark.parametrize("devices", [3, 5, 10, 30, 200])
def test_the_fewest_in_a_sum_are_above_a_third(devices):
    count = degree(devices, 40)
    found = fewest_summed(devices, 40, 0.66)
    assert count / 3 < found <= threshold(count, 0.66) + 1
