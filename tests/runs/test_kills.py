"""A kill at any moment leaves a run that resumes to the same end, bit for bit."""

import random
import subprocess
import sys

import pytest

from .tiny import FILES_OF_COMMAND, FLAGS, differences

KILLED = -9
COMMAND = ["run", *FLAGS, "--rounds", "2"]


@pytest.fixture(scope="module")
def whole(fedtiny, tmp_path_factory):
    """The folder of the run that nobody kills, and how long it took."""
    path = tmp_path_factory.mktemp("whole") / "run"
    fedtiny.to_the_end(*COMMAND, "--out", str(path.with_name("first")))
    seconds = fedtiny.to_the_end(*COMMAND, "--out", str(path))["seconds"]
    assert differences(path, path.with_name("first")) == []
    assert packed(path) == packed(path.with_name("first"))
    return path, seconds


@pytest.mark.slow
def test_ten_kills_at_random_moments(fedtiny, whole, tmp_path):
    """Killed, resumed, killed again; whenever a run comes to its end, the next one starts."""
    uninterrupted, seconds = whole
    draw, kills, ends, over = random.Random(0), 0, 0, False
    while kills < 10 or not over:
        path = tmp_path / str(ends)
        started = (path / "config.toml").exists()
        order = ["resume", str(path)] if started else [*COMMAND, "--out", str(path)]
        trap = {"after": draw.uniform(0, seconds)} if kills < 10 else {}
        ended = fedtiny(*order, **trap)
        over = ended["code"] == 0
        assert over or ended["code"] == KILLED, ended["output"]
        assert not over or differences(uninterrupted, path) == []
        kills, ends = kills + (not over), ends + over


TORN = {
    3: "versions",
    5: "about",
    7: "partition",
    9: "metrics",
    11: "selection",
    13: "checkpoint",
    15: "a line of metrics",
    16: "checkpoint",
    21: "evaluation",
    23: "model",
    25: "result",
    27: "model",  # packed
    29: "report",
}


def packed(path):
    return (path / "model.packed").read_bytes()


@pytest.mark.slow
def test_a_kill_in_the_middle_of_every_kind_of_write(fedtiny, whole, tmp_path):
    """So there are kills in set-up, selection and finish, and in a round, before its line of
    metrics is whole and between that and its checkpoint; all files before it have taken their
    place by then.
    """
    for call, what in TORN.items():
        path = tmp_path / f"write {call}"
        ended = fedtiny(*COMMAND, "--out", str(path), at="torn write", call=call)
        assert ended["code"] == KILLED, ended["output"]
        torn = [file.name for file in path.iterdir() if file.suffix == ".tmp"]
        assert [name.split(".")[1] for name in torn] == ([] if " " in what else [what])
        fedtiny.to_the_end("resume", str(path))
        assert differences(whole[0], path) == [], what
        left = {file.name for file in path.iterdir()} - {".lock"}
        assert left == FILES_OF_COMMAND, "nothing torn is left"
        assert packed(path) == packed(whole[0]), what


@pytest.mark.parametrize(("stop", "code"), [("ctrl-c", 130), ("sigterm", 143), ("sighup", 129)])
def test_a_signal_at_a_write_resumes_as_well(fedtiny, whole, tmp_path, stop, code):
    path = tmp_path / "run"
    ended = fedtiny(*COMMAND, "--out", str(path), at=stop, call=14)
    assert ended["code"] == code
    assert ended["output"].endswith(f"continue with: fedtiny resume {path}\n")
    assert "Traceback" not in ended["output"]
    fedtiny.to_the_end("resume", str(path))
    assert differences(whole[0], path) == []


def test_a_kill_before_the_config_is_written_is_no_dead_end(fedtiny, whole, tmp_path):
    path = tmp_path / "run"
    start = [*COMMAND, "--out", str(path)]
    assert fedtiny(*start, at="torn write", call=1)["code"] == KILLED
    left = {file.name.partition(".toml")[0] for file in path.iterdir()}
    assert left == {".lock", ".config"}
    assert "is not a run folder" in fedtiny("resume", str(path))["output"]
    fedtiny.to_the_end(*start)
    assert differences(whole[0], path) == []


LONG = ["--workers", "2", "--rounds", "1", "--train.local-epochs", "300"]


def test_workers_of_a_killed_run_do_not_keep_it_locked(fedtiny, tmp_path):
    path = tmp_path / "run"
    order = [*COMMAND, *LONG, "--out", str(path)]
    assert fedtiny(*order, at="renamed", call=6)["code"] == KILLED
    assert fedtiny("resume", str(path), at="worker at work", call=1)["code"] == KILLED
    ended = fedtiny("resume", str(path), at="worker at work", call=1)
    assert "another process is working on" not in ended["output"]


@pytest.mark.slow
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
