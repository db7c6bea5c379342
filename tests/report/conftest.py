"""Runs to report on."""

import shutil

import pytest

from ..cli.conftest import fedtiny  # noqa: F401
from ..runs.tiny import TINY, own_data, stop, tiny, train

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="session")
def _finished_once(tmp_path_factory):
    config = tiny(rounds=4, pruning={"r_stop": 2}, selection={"pool_size": 5}, eval_devices=True)
    return train(config, tmp_path_factory.mktemp("finished") / "run").path


@pytest.fixture
def finished(_finished_once, tmp_path):
    """A finished run; a copy to play with."""
    return shutil.copytree(_finished_once, tmp_path / "run")


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped after two of three rounds."""
    return stop(TINY, tmp_path / "stopped", 2)


@pytest.fixture(scope="session")
def several(tmp_path_factory):
    """Two methods at two densities and a dense run, one of them over two seeds."""
    parent = tmp_path_factory.mktemp("several")
    for density in (0.3, 0.15):
        for method in ("fedtiny", "fl_pqsu"):
            name = f"{method}-d{density}-s0"
            train(tiny(method=method, density=density, rounds=2), parent / name)
    train(tiny(density=0.3, seed=1, rounds=2), parent / "fedtiny-d0.3-s1")
    train(tiny(method="fedavg", density=1.0, rounds=2), parent / "fedavg")
    return parent


@pytest.fixture(scope="session")
def evil(tmp_path_factory):
    """A run whose folder, classes and data set are named to break out of a page."""
    data = own_data(classes=[EVIL, '"><img src=x onerror=alert(1)>', "a&b", "'d'"], name=EVIL)
    folder = tmp_path_factory.mktemp("evil") / "<img src=x onerror=alert(1)>"
    return train(tiny(rounds=2), folder, data=data).path
