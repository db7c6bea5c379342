"""Runs that several tests look at."""

import shutil

import pytest

from .tiny import TINY, Mortal, stop, train


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


@pytest.fixture(scope="session")
def fedtiny():
    """The command, in a process that can be killed or made to fail."""
    mortal = Mortal()
    yield mortal
    mortal.close()
