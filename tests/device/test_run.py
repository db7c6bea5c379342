"""Federated runs of the digits whose devices are programs: the candidate and masks of Python's."""

import pytest
from tests.devices.gpu.twins import (
    Twins,
    Watcher,
    assert_near_until_then,
    assert_the_same_candidate,
    assert_the_same_first_adjustment,
    play,
    quick,
)

pytestmark = pytest.mark.slow
SETTINGS = {"device_backend": "native", "rounds": 2}


@pytest.fixture(scope="module")
def at_home(tmp_path_factory):
    """The run with devices in Python."""
    return play(quick(**SETTINGS), tmp_path_factory.mktemp("home") / "run")


class Killer(Watcher):
    """Kills the program of device 0 after every round."""

    def round_done(self, record):
        super().round_done(record)
        self.assembly.server.transport.executor.remote[0].place.process.kill()


def test_programs_that_are_killed_come_to_the_same_model_as_python(program, at_home, tmp_path):
    config = quick(**SETTINGS, device={"program": f"0-1={program} {{data}}"})
    played = play(config, tmp_path / "run", Killer())
    assert [theta.version for theta in played.thetas] == [t.version for t in at_home.thetas]


def test_a_program_for_arm_among_them(program, foreign_program, at_home, tmp_path):
    programs = f"0-1={program} {{data}}; 2={foreign_program} {{data}}"
    config = quick(**SETTINGS, device={"program": programs})
    both = Twins(at_home, play(config, tmp_path / "run"))
    assert_the_same_candidate(both)
    assert_near_until_then(both)
    assert_the_same_first_adjustment(both)
