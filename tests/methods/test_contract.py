"""What every method must keep, those of other packages too.

Whatever method is installed beside fedtiny is tested here: `pytest tests/methods/test_contract.py
-k its_name`.
"""

import numpy as np
import pytest

from fedtiny import methods
from fedtiny.devices.executors import can_fork

from .contract import (
    DENSITY,
    DEVICES,
    NAMES,
    R_STOP,
    ROUNDS,
    Archive,
    config_of,
    example_installed,
)

pytestmark = pytest.mark.parametrize("method", NAMES)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs a method in some way, once for all tests."""
    with example_installed(tmp_path_factory.mktemp("installed")):
        yield Archive(tmp_path_factory.mktemp("contract"))


def limits(method):
    """The densities that a method says it never exceeds, by round."""
    made = methods.create(config_of(method))
    return [made.density_limit(round) for round in range(ROUNDS)]


def test_it_ends_with_finite_weights(ran, method):
    assert len(ran(method).metrics) == ROUNDS
    for name, values in ran(method).model.items():
        assert np.isfinite(values).all(), name
    assert np.isfinite(ran(method).result.loss)
    assert 0 <= ran(method).result.accuracy <= 1


def test_its_density_stays_within_its_limit(ran, method):
    for record, limit in zip(ran(method).metrics, limits(method), strict=True):
        assert record["density"] <= limit + 1e-9
        assert all(0 < density <= 1 for density in record["densities"].values())
    assert ran(method).metrics[-1]["density"] == ran(method).mask.density


def test_it_comes_down_to_the_target_or_is_meant_to_stay_dense(ran, method):
    last = limits(method)[-1]
    if last == 1:
        assert methods.find(method).dense or method == "small_model"
        assert ran(method).mask.density == 1
    else:
        assert last == pytest.approx(DENSITY)
        for record in ran(method).metrics[R_STOP:]:
            assert 0.9 * DENSITY < record["density"] <= DENSITY


def test_pruned_weights_are_exactly_zero_in_the_model_file(ran, method):
    mask, model = ran(method).mask, ran(method).model
    for layer in mask:
        assert model[layer].shape == mask.param_spec.prunable[layer]
        assert (model[layer][~mask.array(layer)] == 0).all()
        assert mask.kept(layer) >= 1
    assert ran(method).result.density == mask.density


@pytest.mark.slow
def test_a_second_run_gives_the_same_bytes(ran, method):
    assert ran(method, "again").bytes == ran(method).bytes
    assert ran(method, "again").metrics == ran(method).metrics


@pytest.mark.slow
@pytest.mark.skipif(not can_fork(), reason="workers need fork")
def test_the_number_of_workers_changes_no_byte(ran, method):
    assert ran(method, "two workers").bytes == ran(method).bytes
    assert ran(method, "two workers").metrics == ran(method).metrics


@pytest.mark.slow
def test_a_run_that_was_stopped_and_resumed_ends_with_the_same_bytes(ran, method):
    assert ran(method, "stopped").bytes == ran(method).bytes
    assert ran(method, "stopped").metrics == ran(method).metrics


@pytest.mark.slow
def test_bytes_counted_are_bytes_encoded(ran, method):
    assert ran(method, "encoded").metrics == ran(method).metrics
    assert ran(method, "encoded").bytes == ran(method).bytes


@pytest.mark.slow
def test_it_goes_on_without_devices_that_fail_and_names_them(ran, method):
    failing = ran(method, "failing")
    assert len(failing.metrics) == ROUNDS
    for record in failing.metrics:
        assert sorted([*record["answered"], *map(int, record["failed"])]) == list(range(DEVICES))
        assert set(record["failed"].values()) <= {"out of reach"}
        assert record["counted"]
    assert any(record["failed"] for record in failing.metrics)
    assert failing.metrics[-1]["density"] <= limits(method)[-1] + 1e-9
    assert all(np.isfinite(values).all() for values in failing.model.values())
