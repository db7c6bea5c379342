"""Runs that several tests look at."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .tiny import TINY, stop, train


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The result of the tiny run, uninterrupted; its folder is not to be changed."""
    return train(TINY, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture(scope="session")
def _stopped_once(tmp_path_factory):
    return stop(TINY, tmp_path_factory.mktemp("stopped") / "run", 2)


@pytest.fixture
def stopped(_stopped_once, tmp_path):
    """The folder of the tiny run, stopped after two of three rounds; a copy to play with."""
    return shutil.copytree(_stopped_once, tmp_path / "stopped")


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


@pytest.fixture(scope="session")
def fedtiny():
    """The command, in a process that can be killed or made to fail."""
    mortal = Mortal()
    yield mortal
    mortal.close()
