"""Every sample is on exactly one device, and no device goes short."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtiny.data.partition import KINDS, Partition, split
from fedtiny.errors import DataError

BALANCED = np.repeat(np.arange(10), 200)


def split_of(kind: str, labels: np.ndarray, devices: int, minimum: int, **options) -> Partition:
    usual = {"alpha": 0.5, "shards_per_device": 1, "seed": 0}
    return split(kind, labels, devices, minimum=minimum, **(usual | options))


@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=80),
    alpha=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_a_partition_is_complete_disjoint_and_keeps_the_minimum(
    kind: str, labels: list[int], alpha: float, seed: int, data
) -> None:
    devices = data.draw(st.integers(1, len(labels)))
    minimum = data.draw(st.integers(1, len(labels) // devices))
    per_device = data.draw(st.integers(1, len(labels) // devices))
    partition = split_of(
        kind,
        np.array(labels),
        devices,
        minimum,
        alpha=alpha,
        seed=seed,
        shards_per_device=per_device,
    )
    assert len(partition) == devices
    assert sorted(np.concatenate(partition.devices)) == list(range(len(labels)))
    assert partition.sizes.min() >= minimum
    for device in partition.devices:
        assert device.dtype == np.int64
        assert np.array_equal(device, np.sort(device))
    table = partition.table(np.array(labels), 6)
    assert table.sum(axis=0).tolist() == np.bincount(labels, minlength=6).tolist()
    assert table.sum(axis=1).tolist() == partition.sizes.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: str) -> None:
    flat = [split_of(kind, BALANCED, 10, 5, seed=seed).flat()[0] for seed in (1, 1, 2)]
    assert np.array_equal(flat[0], flat[1])
    assert not np.array_equal(flat[0], flat[2])


def test_alpha_decides_how_unlike_the_devices_are() -> None:
    def largest_class_share(alpha: float) -> float:
        table = split_of("dirichlet", BALANCED, 10, 10, alpha=alpha, seed=3).table(BALANCED, 10)
        return float(np.mean(table.max(axis=1) / table.sum(axis=1)))

    shares = [largest_class_share(alpha) for alpha in (0.1, 0.5, 5.0, 1000.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.5
    assert shares[-1] < 0.15


def test_no_class_is_treated_otherwise_than_another() -> None:
    """A class that comes late in the order of the labels reaches as many devices as the first."""
    tables = [
        split_of("dirichlet", BALANCED, 10, 1, seed=seed).table(BALANCED, 10) for seed in range(60)
    ]
    holders = np.mean([(table > 1).sum(axis=0) for table in tables], axis=0)
    assert holders.max() - holders.min() < 1.0


def test_a_device_may_have_much_more_than_its_even_share() -> None:
    sizes = split_of("dirichlet", BALANCED, 10, 1).sizes
    assert sizes.max() > 1.5 * sizes.mean()


def test_a_minimum_that_is_never_drawn_is_still_kept() -> None:
    partition = split_of("dirichlet", BALANCED, 100, 20, alpha=0.01)
    assert partition.sizes.tolist() == [20] * 100


def test_iid_devices_differ_by_one_sample_at_most() -> None:
    sizes = split_of("iid", BALANCED[:1003], 10, 1).sizes
    assert sizes.max() - sizes.min() == 1


def test_a_shard_holds_one_label_where_the_numbers_fit() -> None:
    table = split_of("shards", BALANCED, 10, 1, shards_per_device=2).table(BALANCED, 10)
    assert ((table > 0).sum(axis=1) <= 2).all()
    assert set(table.reshape(-1).tolist()) <= {0, 100, 200}


@pytest.mark.parametrize(
    ("kind", "options", "complaint"),
    [
        ("dirichlet", {"alpha": 0.0}, "alpha"),
        ("dirichlet", {"alpha": float("nan")}, "alpha"),
        ("dirichlet", {"alpha": float("inf")}, "alpha"),
        ("iid", {"devices": 0}, "1 device or more"),
        ("iid", {"minimum": 0}, "1 sample or more"),
        ("iid", {"devices": 2001}, "need 2001 samples"),
        ("dirichlet", {"devices": 10, "minimum": 201}, "need 2010 samples"),
        ("shards", {"shards_per_device": 0}, "from 1 to 200"),
        ("shards", {"shards_per_device": 201}, "into 2010 shards"),
        ("Dirichlet", {}, "dirichlet, iid, shards"),
    ],
)
def test_what_cannot_be_split_is_refused(kind: str, options: dict, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        split_of(kind, BALANCED, **({"devices": 10, "minimum": 1} | options))


def test_a_saved_partition_comes_back() -> None:
    partition = split_of("dirichlet", BALANCED, 7, 1)
    back = Partition.from_flat(*partition.flat())
    assert len(back) == 7
    assert all(map(np.array_equal, back.devices, partition.devices))


@pytest.mark.parametrize("offsets", [[0], [0, 2], [1, 3], [0, 4], [0, 3, 2, 3]])
def test_a_damaged_partition_is_refused(offsets: list[int]) -> None:
    with pytest.raises(DataError, match="damaged"):
        Partition.from_flat(np.arange(3), np.array(offsets))


def test_a_sample_on_two_devices_is_refused() -> None:
    with pytest.raises(DataError, match="two devices"):
        Partition((np.array([0, 1]), np.array([1])))
    with pytest.raises(DataError, match="1 device"):
        Partition(())
