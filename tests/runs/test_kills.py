"""A kill at any moment leaves a run that resumes to the same end, bit for bit."""

import json
import os
import random
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from .tiny import FILES, FLAGS, differences, lines

KILLED = -9
COMMAND = ["run", *FLAGS, "--rounds", "2"]


class Mortal:
    """A `fedtiny` that can be killed at will."""

    def __init__(self):
        script = Path(__file__).with_name("mortal.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        )

    def __call__(self, *arguments, **trap):
        self.process.stdin.write(json.dumps({"arguments": arguments, **trap}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def to_the_end(self, *arguments):
        ended = self(*arguments)
        assert ended["code"] == 0, ended["output"]
        return ended

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


@pytest.fixture(scope="module")
def fedtiny():
    mortal = Mortal()
    yield mortal
    mortal.close()


@pytest.fixture(scope="module")
def whole(fedtiny, tmp_path_factory):
    """The folder of the run that nobody kills, and how long it took."""
    path = tmp_path_factory.mktemp("whole") / "run"
    fedtiny.to_the_end(*COMMAND, "--out", str(path.with_name("first")))
    seconds = fedtiny.to_the_end(*COMMAND, "--out", str(path))["seconds"]
    assert differences(path, path.with_name("first")) == []
    return path, seconds


def test_ten_kills_at_random_moments(fedtiny, whole, tmp_path):
    """Killed, resumed, killed again; whenever a run comes to its end, the next one starts."""
    uninterrupted, seconds = whole
    draw, kills, ends, names = random.Random(0), 0, 0, count()
    path = tmp_path / str(next(names))
    while kills < 10 or not (path / "result.json").exists():
        started = (path / "config.toml").exists()
        if not started:
            path = tmp_path / str(next(names))
        order = ["resume", str(path)] if started else [*COMMAND, "--out", str(path)]
        trap = {"after": draw.uniform(0, seconds)} if kills < 10 else {}
        ended = fedtiny(*order, **trap)
        assert ended["code"] in (KILLED, 0), ended["output"]
        kills += ended["code"] == KILLED
        if ended["code"] == 0:
            assert differences(uninterrupted, path) == []
            ends += 1
            path = tmp_path / str(next(names)) if kills < 10 else path
    assert ends >= 1


def test_a_kill_at_every_write(fedtiny, whole, tmp_path):
    """In the middle of every file, and just after it has taken its place: 21 moments.

    So there are kills before and after each checkpoint, between it and its line of metrics, in
    the middle of both, and during set-up, selection and finish.
    """
    outcomes, states = {}, set()
    for path in killed_at_every_write(fedtiny, tmp_path):
        states.add(frozenset(file.name for file in path.iterdir()) & FILES)
        fedtiny.to_the_end("resume", str(path))
        outcomes[path.name] = differences(whole[0], path)
        assert [line["round"] for line in lines(path)] == [0, 1]
    assert outcomes == {name: [] for name in outcomes}
    assert len(outcomes) >= 16
    assert len(states) == len(FILES), "every file was the last to be written once"


def killed_at_every_write(fedtiny, folder):
    """The folder of a run killed at its first write, then at its second, and so on."""
    for call in count(1):
        path = folder / f"write {call}"
        ended = fedtiny(*COMMAND, "--out", str(path), at="torn write", call=call)
        if ended["code"] == 0:
            return
        assert ended["code"] == KILLED, ended["output"]
        if (path / "config.toml").exists():
            yield path


def test_a_run_killed_again_and_again(fedtiny, whole, tmp_path):
    """Each start gets one write further than its own beginning, and no more."""
    path = tmp_path / "run"
    ended = fedtiny(*COMMAND, "--out", str(path), at="renamed", call=4)
    kills = 0
    while ended["code"] == KILLED:
        kills += 1
        ended = fedtiny("resume", str(path), at="torn write", call=6 + kills)
    assert ended["code"] == 0, ended["output"]
    assert kills >= 3
    assert differences(whole[0], path) == []


def test_ctrl_c_at_a_write_resumes_as_well(fedtiny, whole, tmp_path):
    path = tmp_path / "run"
    ended = fedtiny(*COMMAND, "--out", str(path), at="ctrl-c", call=14)
    assert ended["code"] == 130
    assert ended["output"].endswith(f"continue with: fedtiny resume {path}\n")
    assert "Traceback" not in ended["output"]
    fedtiny.to_the_end("resume", str(path))
    assert differences(whole[0], path) == []


@pytest.mark.xfail(
    strict=True,
    reason="a kill between making the folder and naming config.toml leaves .lock and a temporary "
    "file: resume finds no run, and run finds the folder not empty",
)
def test_a_kill_before_the_config_is_written_is_no_dead_end(fedtiny, whole, tmp_path):
    path = tmp_path / "run"
    start = [*COMMAND, "--out", str(path)]
    assert fedtiny(*start, at="torn write", call=1)["code"] == KILLED
    codes = [fedtiny(*order)["code"] for order in (["resume", str(path)], start)]
    assert 0 in codes
    assert differences(whole[0], path) == []


@pytest.mark.xfail(strict=True, reason="temporary files of killed processes stay for ever")
def test_a_resumed_run_clears_away_what_a_kill_left(fedtiny, tmp_path):
    path = tmp_path / "run"
    fedtiny(*COMMAND, "--out", str(path), at="torn write", call=11)
    fedtiny.to_the_end("resume", str(path))
    assert {file.name for file in path.iterdir()} - {".lock"} == FILES


LONG = ["--workers", "2", "--rounds", "1", "--train.local-epochs", "300"]


@pytest.mark.xfail(
    strict=True,
    reason="resume locks before it forks, so its workers hold the lock and outlive a kill until "
    "their job is done: 'another process is working on' the run",
)
def test_workers_of_a_killed_run_do_not_keep_it_locked(fedtiny, tmp_path):
    path = tmp_path / "run"
    order = [*COMMAND, *LONG, "--out", str(path)]
    assert fedtiny(*order, at="renamed", call=6)["code"] == KILLED
    assert fedtiny("resume", str(path), at="worker at work", call=1)["code"] == KILLED
    ended = fedtiny("resume", str(path), at="worker at work", call=1)
    assert "another process is working on" not in ended["output"]


def test_a_real_process_is_killed_and_resumed(whole, tmp_path):
    """The same from outside, as a user would."""
    path = tmp_path / "run"
    order = [sys.executable, "-m", "fedtiny", *COMMAND, "--out", str(path)]
    process = subprocess.Popen(order, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("chosen candidate"):
            process.kill()
            break
    process.stdout.close()
    assert process.wait() in (KILLED, 0), "0 where it was over before the kill came"
    resume = [sys.executable, "-m", "fedtiny", "resume", str(path)]
    subprocess.run(resume, check=True, capture_output=True)
    assert differences(whole[0], path) == []
