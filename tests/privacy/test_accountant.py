"""Epsilon is dp-accounting's own for what is done."""

import sys
from math import inf

import pytest

from fedtiny.errors import FedTinyError
from fedtiny.privacy.accountant import Release, epsilon, noise_for

DELTA = 1e-3
POISSON, FIXED = Release(1.1, "poisson", 0.1, 100), Release(2.2, "fixed", 0.1, 100)


@pytest.fixture
def dp():
    return pytest.importorskip("dp_accounting")


def own_epsilon(dp, event, times, replaces):
    relation = dp.NeighboringRelation
    account = dp.rdp.RdpAccountant(
        neighboring_relation=relation.REPLACE_ONE if replaces else relation.ADD_OR_REMOVE_ONE
    )
    for _ in range(times):
        account.compose(event)
    return account.get_epsilon(DELTA)


def test_poisson_sampling(dp):
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.1))
    expected = own_epsilon(dp, event, 4, replaces=False)
    assert epsilon([(POISSON, 4)], DELTA) == pytest.approx(expected, rel=1e-12)


def test_everyone_is_no_sampling(dp):
    expected = own_epsilon(dp, dp.GaussianDpEvent(1.1), 5, replaces=False)
    everyone = Release(1.1, "poisson", 1.0, 100)
    assert epsilon([(everyone, 5)], DELTA) == pytest.approx(expected, rel=1e-12)


def test_a_fixed_number_replaces_a_device_so_the_sum_changes_by_twice_the_clip(dp):
    event = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(2.2 / 2))
    expected = own_epsilon(dp, event, 4, replaces=True)
    assert epsilon([(FIXED, 4)], DELTA) == pytest.approx(expected, rel=1e-12)


def test_releases_of_several_kinds_add_up(dp):
    more = Release(3.0, "poisson", 0.1, 100)
    account = dp.rdp.RdpAccountant()
    account.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.1)), 3)
    account.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(3.0)), 2)
    found = epsilon([(POISSON, 3), (more, 2)], DELTA)
    assert found == pytest.approx(account.get_epsilon(DELTA), rel=1e-12)


def test_the_distribution_of_the_loss_is_tighter(dp):
    event = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.1))
    account = dp.pld.PLDAccountant()
    account.compose(dp.SelfComposedDpEvent(event, 4))
    found = epsilon([(POISSON, 4)], DELTA, "pld")
    assert found == account.get_epsilon(DELTA)
    assert found < epsilon([(POISSON, 4)], DELTA, "rdp")


@pytest.mark.parametrize("release", [POISSON, FIXED])
def test_the_noise_for_a_budget_spends_it_and_no_more(dp, release):
    noise = noise_for(4.0, DELTA, release, 10)
    found = Release(noise, release.sampling, release.rate, release.devices)
    assert 3.98 < epsilon([(found, 10)], DELTA) <= 4.0
    assert epsilon([(found, 11)], DELTA) > 4.0


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_budget_that_hardly_any_noise_meets_gets_a_little(dp, sampling):
    release = Release(1.0, sampling, 0.5, 10)
    assert noise_for(1e6, DELTA, release, 2) == 0.1


def test_nothing_is_spent_by_nothing_and_everything_without_noise():
    assert epsilon([], DELTA) == 0
    assert epsilon([(Release(0.0, "fixed", 0.1, 100), 1)], DELTA) == inf


def test_who_is_asked():
    assert Release(1, "poisson", 0.25, 10).asked == 2.5
    assert Release(1, "fixed", 0.25, 10).asked == 3
    assert Release(1, "fixed", 0.01, 10).asked == 1


def test_a_missing_library_says_which_extra_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(FedTinyError, match=r"pip install 'fedtiny\[dp\]'"):
        epsilon([(Release(1.25, "poisson", 0.5, 10), 1)], DELTA)
