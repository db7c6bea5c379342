"""A device's own data, and the development set drawn from it once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtiny.devices.device_data import shard

from .tiny import images

DATA = images(60).train


def development(count, ratio=0.1, seed=0, device=0):
    own = np.arange(60)[-count:]
    return shard(device, DATA, own, ratio, seed).development


@given(st.integers(2, 60), st.floats(0.01, 1), st.integers(0, 99), st.integers(0, 99))
def test_the_development_set_is_some_of_the_device_s_own(count, ratio, seed, device):
    own = np.random.default_rng(seed).permutation(60)[:count]
    found = shard(device, DATA, own, ratio, seed)
    assert set(found.development) <= set(own.tolist())
    assert len(set(found.development)) == len(found.development)
    assert 2 <= len(found.development) <= count == len(found)
    assert abs(len(found.development) - ratio * count) <= 2
    assert (np.diff(found.development) > 0).all()


@pytest.mark.parametrize(("count", "ratio", "expected"), [(60, 0.1, 6), (50, 1, 50), (12, 0.1, 2)])
def test_its_size_is_the_ratio_but_at_least_two(count, ratio, expected):
    assert len(development(count, ratio)) == expected


def test_it_is_fixed_by_the_seed_and_the_device():
    assert development(40).tolist() == development(40).tolist()
    assert development(40).tolist() != development(40, seed=1).tolist()
    assert development(40).tolist() != development(40, device=1).tolist()
