"""Federated runs of the digits whose devices are programs: the candidate and masks of Python's."""

import pytest
from tests.device.link import resident
from tests.devices.gpu.twins import (
    Twins,
    Watcher,
    assert_near_until_then,
    assert_the_same_candidate,
    assert_the_same_first_adjustment,
    play,
    quick,
)

from fedtiny.federation.rounds import federate
from fedtiny.runs.assembly import assemble

pytestmark = pytest.mark.slow
SETTINGS = {"device_backend": "native", "rounds": 2}


@pytest.fixture(scope="module")
def at_home(tmp_path_factory):
    """The run with devices in Python."""
    return play(quick(**SETTINGS), tmp_path_factory.mktemp("home") / "run")


class Killer(Watcher):
    """Kills the programs of some devices while they are at work, in every round."""

    def __init__(self, *victims):
        super().__init__()
        self.victims, self.failed = victims, {}

    def started(self, assembly, folder, records):
        super().started(assembly, folder, records)
        executor = assembly.server.transport.executor
        answers = executor.answers

        def killing(tasks):
            found = answers(tasks)
            for victim in self.victims:
                executor.remote[victim].place.process.kill()
            return found

        executor.answers = killing

    def round_done(self, record):
        super().round_done(record)
        self.failed |= record["failed"]


def test_programs_that_are_killed_come_to_the_same_model_as_python(program, at_home, tmp_path):
    config = quick(**SETTINGS, device={"program": f"0-1={program} {{data}}"})
    killer = Killer(0)
    played = play(config, tmp_path / "run", killer)
    assert not killer.failed
    assert [theta.version for theta in played.thetas] == [t.version for t in at_home.thetas]


def test_a_program_for_arm_among_them(program, foreign_program, at_home, tmp_path):
    programs = f"0-1={program} {{data}}; 2={foreign_program} {{data}}"
    config = quick(**SETTINGS, device={"program": programs})
    killer = Killer(0, 2)
    both = Twins(at_home, play(config, tmp_path / "run", killer))
    assert not killer.failed
    assert_the_same_candidate(both)
    assert_near_until_then(both)
    assert_the_same_first_adjustment(both)


@pytest.mark.parametrize(
    ("method", "budget", "density", "limit"),
    [
        ("fedtiny", 10_000_000, 0.001, ""),
        ("fedtiny", 24_000_000, 0.01, "--memory {}"),
        ("feddst", 10_000_000, 0.001, "--memory {}"),
        ("feddst", 24_000_000, 0.01, ""),
    ],
)
def test_the_whole_process_of_a_program_stays_within_the_budget(
    program, method, budget, density, limit
):
    """Its code, the arena, messages and images; one with a limit is asked nothing beyond it."""
    command = f"0-1={program} {limit.format(budget)} {{data}}"
    config = quick(
        method=method,
        width=64,
        density=density,
        memory_budget=str(budget),
        device_backend="native",
        device={"program": command},
        fleet={"devices": 2},
        data={"limit_train": 200, "limit_test": 20},
        train={"local_epochs": 1, "batch_size": 64, "pretrain_epochs": 0},
        selection={"pool_size": 20},
        pruning={"delta_r": 1, "r_stop": 2},
    )
    assembly = assemble(config)
    try:
        for result in federate(assembly.server, assembly.method, rounds=2):
            assert not result.outcome.failed
        peaks = [resident(assembly.executor.remote[n].place.process) for n in (0, 1)]
    finally:
        assembly.server.transport.close()
    assert all(0.4 * budget < peak <= budget for peak in peaks)
