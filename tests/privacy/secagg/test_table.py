"""Sparse values under masks: all positions and sums come back, or it is said that they do not."""

import numpy as np
import pytest

from fedtiny.privacy.secagg.table import Table

from .parties import refusal


def drawn(table, draw, shared=0):
    """A device's positions, some of which all devices have, and values."""
    own = draw.choice(table.largest - shared, table.entries - shared, replace=False) + shared
    keys = np.sort(np.concatenate([np.arange(shared), own])).astype(np.int64)
    return keys, draw.integers(-table.levels, table.levels + 1, len(keys))


@pytest.mark.parametrize(
    ("devices", "entries", "largest", "shared"),
    [(3, 1, 5, 0), (10, 40, 4000, 10), (10, 500, 11_000_000, 100), (20, 30, 60, 0), (6, 9, 9, 0)],
)
def test_a_sum_of_tables_gives_all_positions_back(devices, entries, largest, shared):
    draw, exact = np.random.default_rng(1), {}
    table, total = Table(devices, entries, largest, seed=7), 0
    for _ in range(devices):
        keys, values = drawn(table, draw, shared)
        for key, value in zip(keys.tolist(), values.tolist(), strict=True):
            count, before = exact.get(key, (0, 0))
            exact[key] = (count + 1, before + value)
        total = total + table.filled(keys, values)
    assert total.dtype == np.uint32
    keys, counts, sums = table.read(total)
    told = zip(counts.tolist(), sums.tolist(), strict=True)
    assert dict(zip(keys.tolist(), told, strict=True)) == exact
    assert (np.diff(keys) > 0).all()


def test_no_table_of_any_size_fails_often():
    """Small tables are the hardest: all of 400 are read."""
    for seed in range(400):
        draw = np.random.default_rng(seed)
        table = Table(5, 1 + seed % 20, 10_000, seed)
        total = sum(table.filled(*drawn(table, draw)) for _ in range(5)).astype(np.uint32)
        assert len(table.read(total)[0])


def test_an_empty_table_is_read():
    table = Table(4, 10, 100, 0)
    keys, counts, sums = table.read(np.zeros(table.size, np.uint32))
    assert len(keys) == len(counts) == len(sums) == 0


def test_a_damaged_table_is_refused_not_misread():
    table, draw = Table(4, 50, 1000, 0), np.random.default_rng(0)
    total = sum(table.filled(*drawn(table, draw)) for _ in range(4)).astype(np.uint32)
    for place in draw.integers(0, table.size, 60):
        damaged = total.copy()
        damaged[place] += 12345
        assert refusal(lambda bad=damaged: table.read(bad))
    noise = draw.integers(0, 2**32, table.size, dtype=np.uint32)
    assert refusal(lambda: table.read(noise))


def test_what_has_no_room_is_refused():
    assert "use --pruning.growth shared" in refusal(lambda: Table(1000, 1, 2**23, 0))
    table = Table(3, 2, 100, 0)
    keys = np.arange(3)
    assert refusal(lambda: table.filled(keys, np.zeros(3, np.int64)))
    assert refusal(lambda: table.filled(keys[:1], np.array([2**31])))
