"""What every method promises, on real devices: its density, its bits, and patience with a fleet."""

import pytest

from fedtiny import methods
from fedtiny.federation.rounds import federate

from ..devices.tiny import lab, settings

NAMES = [method.name for method in methods.BUILT_IN]
ROUNDS = 5
PRUNING = {"delta_r": 2, "r_stop": 4}
VOID_AT_TWO = 17  # the seed of a run in whose round 2 too few devices answer


def results(method, rounds=ROUNDS, **changes):
    """A run of a method, and what came of each round."""
    fleet = {"devices": 3} | changes.pop("fleet", {})
    bench = lab(settings(method=method, fleet=fleet, pruning=PRUNING, **changes), sizes=(8, 9, 13))
    yield from ((result, bench) for result in federate(bench.server, bench.method, rounds))


@pytest.mark.parametrize("method", NAMES)
def test_a_method_keeps_its_density(method):
    densities = []
    for result, bench in results(method):
        assert result.counted
        limit = bench.method.density_limit(result.round)
        densities.append(bench.server.theta.mask.density)
        assert densities[-1] <= limit + 1e-9
        assert min(bench.server.theta.mask.counts.values()) >= 1
    target = 1.0 if method in ("fedavg", "small_model") else 0.2
    assert 0.9 * target < densities[-1] <= target


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_the_wire_changes_no_bit_and_no_byte_of_a_method(method):
    runs = [
        [
            (result.outcome.traffic, result.outcome.by_device, bench.server.theta.version)
            for result, bench in results(method, rounds=4, fleet={"wire": wire})
        ]
        for wire in ("count", "encode")
    ]
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("method", NAMES)
def test_a_method_lives_through_void_rounds(method):
    fleet = {"fail_rate": 0.45, "min_replies": 2}
    counted = [r.counted for r, _ in results(method, 6, fleet=fleet, seed=VOID_AT_TWO)]
    assert not counted[2]  # in which the mask would be adjusted
    assert counted.count(True) >= 3
