"""Clipping and noise, with numbers that can be checked by hand."""

from math import exp, inf, sqrt

import numpy as np
import pytest

from fedtiny.privacy.mechanism import BIT_NOISE, Mechanism, Part, adapted, norm

DRAWS = 200_000


def mechanism(clip=1.0, noise=1.0, asked=10.0, **other):
    return Mechanism(clip, noise, asked, **{"seed": 7, "round": 3, "number": 0, **other})


def part(*values, weight=1.0):
    return Part(np.array(values, np.float64), weight)


def test_the_norm_is_that_of_all_parts_together():
    assert norm([part(3, 4), part(12)]) == 13
    assert norm([part(3, 4), part(24, weight=0.5)]) == 13


@pytest.mark.parametrize(("clip", "factor"), [(26, 1), (13, 1), (6.5, 0.5), (1.3, 0.1), (inf, 1)])
def test_a_vector_is_scaled_down_to_the_clip_and_never_up(clip, factor):
    assert mechanism(clip).factor([part(3, 4), part(12)]) == pytest.approx(factor, rel=1e-15)


def test_nothing_is_left_as_it_is():
    assert mechanism().factor([part(0, 0)]) == mechanism().factor([]) == 1


def is_normal(draws, deviation):
    """Mean, deviation, kurtosis and tails, each within five standard errors."""
    scaled = draws / deviation
    error = 5 / sqrt(len(draws))
    tail = np.mean(np.abs(scaled) > 1.959964)
    return (
        abs(scaled.mean()) < error
        and abs(scaled.std() - 1) < error
        and abs((scaled**4).mean() - 3) < sqrt(96) * error
        and abs(tail - 0.05) < sqrt(0.05) * error
    )


def test_noise_is_gaussian_with_the_deviation_that_is_accounted_for():
    found = mechanism(clip=2.0, noise=1.5, asked=10).noise("theta", DRAWS)
    assert is_normal(found, 1.5 * 2.0 / 10)
    lighter = mechanism(clip=2.0, noise=1.5, asked=10).noise("loss", DRAWS, weight=0.1)
    assert is_normal(lighter, 1.5 * 2.0 / (0.1 * 10))
    assert abs(np.corrcoef(found, lighter)[0, 1]) < 5 / sqrt(DRAWS)


def test_noise_is_of_its_own_for_each_seed_round_question_and_purpose():
    same = {"purpose": "theta", "size": 4}
    first = mechanism().noise(**same)
    others = [
        *(mechanism(**{key: 8}).noise(**same) for key in ("seed", "round", "number")),
        mechanism().noise("loss", 4),
    ]
    assert (mechanism().noise(**same) == first).all()
    assert all((own != first).all() for own in others)


def test_bits_and_sum_together_are_one_release():
    """Andrew et al., Theorem 1: 1/z^2 = 1/z_sum^2 + 1/(2 sigma_b)^2."""
    found = mechanism(noise=0.7, counts_bits=True)
    together = found.sum_noise**-2 + (2 * found.bit_noise) ** -2
    assert together == pytest.approx(0.7**-2, rel=1e-12)
    assert found.bit_noise == pytest.approx(BIT_NOISE * 0.7 / 2)


def test_the_share_within_the_clip():
    quiet = mechanism(noise=0.0, asked=10)
    assert quiet.share_within(7, 10, "bits") == pytest.approx(0.7)
    assert quiet.share_within(4, 8, "bits") == pytest.approx(0.5)
    shares = [mechanism(noise=1.0, number=k).share_within(7, 10, "bits") for k in range(4000)]
    assert np.mean(shares) == pytest.approx(0.7, abs=0.04)
    assert np.std(shares) == pytest.approx(BIT_NOISE / 2 / 10, rel=0.06)


def test_the_clip_follows_the_quantile():
    assert adapted(3.0, 1.0, 0.5, 0.2) == pytest.approx(3 * exp(-0.1))
    assert adapted(3.0, 0.0, 0.5, 0.2) == pytest.approx(3 * exp(0.1))
    clip, norms = 50.0, np.linspace(0, 10, 1001)
    for _ in range(200):
        clip = adapted(clip, float(np.mean(norms <= clip)), 0.3, 0.2)
    assert clip == pytest.approx(3.0, abs=0.05)
