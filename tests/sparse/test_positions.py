"""Positions that a seed names: pruned ones, each as likely, the same wherever they are drawn."""

import numpy as np
import pytest

from fedtiny.models.param_spec import ParamSpec
from fedtiny.sparse.mask import Mask
from fedtiny.sparse.positions import random_pruned

SPEC = ParamSpec(
    prunable={"a": (10,), "b": (100, 100)},
    dense={},
    blocks=(("a",), ("b",)),
    norms=(),
    input_layer="first",
    output_layer="last",
)
MASK = Mask(SPEC, {"a": [0, 1, 5], "b": np.arange(0, 10_000, 7)})


def drawn(counts, seed=0, round=0, mask=MASK):
    return random_pruned(mask, counts, seed=seed, round=round, purpose="test")


@pytest.mark.parametrize("count", [0, 1, 3, 7, 8])
def test_as_many_distinct_pruned_positions_as_there_are(count):
    found = drawn({"a": count, "b": 50 * count})
    for layer, positions in found.items():
        assert len(positions) == (min(count, 7) if layer == "a" else 50 * count)
        assert (np.diff(positions) > 0).all()
        assert not np.isin(positions, MASK.indices(layer)).any()
        assert positions.dtype == np.int32
    assert set(drawn({"a": 7})["a"].tolist()) == {2, 3, 4, 6, 7, 8, 9}


def test_seed_and_round_name_them():
    counts = {"b": 20}
    assert np.array_equal(drawn(counts)["b"], drawn(counts)["b"])
    assert not np.array_equal(drawn(counts)["b"], drawn(counts, seed=1)["b"])
    assert not np.array_equal(drawn(counts)["b"], drawn(counts, round=1)["b"])


def test_every_pruned_position_is_as_likely():
    times = np.zeros(10)
    for seed in range(700):
        times[drawn({"a": 3}, seed)["a"]] += 1
    assert (times[[0, 1, 5]] == 0).all()
    assert (np.abs(times[[2, 3, 4, 6, 7, 8, 9]] - 300) < 60).all()
