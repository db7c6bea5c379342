"""A command that is stopped says what is kept and how to go on, whenever the signal comes."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedtiny import finish
from fedtiny.cli import export
from fedtiny.process import Stopped, stop_on_signals
from fedtiny.runs import runner
from fedtiny.runs.recorder import FolderRecorder

from ..runs.tiny import FLAGS

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def stop_at(monkeypatch, target, name, number, *, after=False):
    """Let a signal come when a function is called, or when it has done its work."""
    original = getattr(target, name)

    def stopped(*args, **named):
        if after:
            original(*args, **named)
        raise Stopped(number)

    monkeypatch.setattr(target, name, stopped)


@pytest.mark.parametrize("number", SIGNALS)
def test_before_there_is_a_run_nothing_is_kept(fedtiny, monkeypatch, number):
    stop_at(monkeypatch, runner, "assemble", number)
    said = fedtiny("run", *FLAGS, "--out", "my run")
    assert said.code == 128 + number
    assert said.err.startswith("stopped before the run began, and nothing is kept of it; ")
    assert said.err.endswith(" --out 'my run'\n")
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("number", SIGNALS)
def test_a_run_that_has_only_its_config_goes_on(fedtiny, monkeypatch, number):
    with monkeypatch.context() as patch:
        stop_at(patch, FolderRecorder, "described", number, after=True)
        said = fedtiny("run", *FLAGS, "--out", "run")
    assert said.code == 128 + number
    assert said.out.splitlines() == ["starting fedtiny: small to density 0.3 on digits in run"]
    assert said.err == "stopped; continue with: fedtiny resume run\n"
    assert fedtiny("resume", "run").code == 0


def test_a_run_in_training_says_it_once(fedtiny, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, FolderRecorder, "round_done", signal.SIGTERM, after=True)
        said = fedtiny("run", *FLAGS, "--out", "run")
    assert (said.code, said.err) == (143, "")
    assert said.out.endswith("stopped; continue with: fedtiny resume run\n")


def test_a_resume_that_did_not_go_on_leaves_the_run_as_it_was(fedtiny, monkeypatch, stopped):
    before = {file.name: file.read_bytes() for file in stopped.iterdir()}
    stop_at(monkeypatch, runner, "assemble", signal.SIGINT)
    said = fedtiny("resume", stopped)
    assert (said.code, said.err) == (130, f"stopped; continue with: fedtiny resume {stopped}\n")
    assert {file.name: file.read_bytes() for file in stopped.iterdir()} == before


def test_a_finished_run_is_told_as_complete(fedtiny, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, finish, "_packed_model", signal.SIGTERM)
        said = fedtiny("run", *FLAGS, "--out", "run")
    told = "stopped; continue with: fedtiny resume run (the run itself is complete)\n"
    assert (said.code, said.err) == (143, told)
    assert Path("run/result.json").exists()
    assert fedtiny("resume", "run").code == 0
    assert Path("run/model.packed").exists()


def test_other_commands_are_given_again(fedtiny, monkeypatch, finished):
    stop_at(monkeypatch, export, "export", signal.SIGTERM)
    said = fedtiny("export", finished)
    assert (said.code, said.err) == (143, f"stopped; go on with: fedtiny export {finished}\n")


DROPPED = """
import os, signal, time, weakref
from fedtiny.process import Stopped, stop_on_signals

class Thing: pass

stop_on_signals()
thing = Thing()
kill = lambda _: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(0.01))
kept = weakref.ref(thing, kill)
try:
    del thing
    time.sleep(10)
except Stopped as stopped:
    print(stopped.code)
"""


def test_a_signal_that_comes_in_a_callback_is_not_lost():
    """Python drops what a callback raises, and imports have many."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"143\n", b"")


def test_signals_that_somebody_chose_otherwise_are_left():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    hook = sys.unraisablehook
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        stop_on_signals()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
