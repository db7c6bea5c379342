"""Callbacks hear of a run, and change nothing of it."""

import shutil
import types

import numpy as np
import pytest
import torch

import fedtiny
from fedtiny.errors import ConfigError
from fedtiny.runs.reporter import Silent

from ..runs.tiny import TINY, differences, stop, train


class Noting(fedtiny.Callback):
    def __init__(self):
        self.heard = []

    def on_train_begin(self, result):
        self.heard.append(("begin", len(result.metrics), result.finished))

    def on_round_end(self, record):
        self.heard.append(("round", record["accuracy"]))

    def on_train_end(self, result):
        self.heard.append(("end", result.finished, result.accuracy))


class Meddling(fedtiny.Callback):
    """Changes all that it is given, and every random state that there is."""

    def on_train_begin(self, result):
        result.metrics.append("nonsense")

    def on_round_end(self, record):
        np.random.seed(3)
        torch.manual_seed(3)
        record["densities"].clear()
        record.clear()


class Failing(fedtiny.Callback):
    rounds = 0

    def on_round_end(self, record):
        self.rounds += 1
        if self.rounds == 2:
            raise ZeroDivisionError("mine")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("quiet") / "run")


def test_they_are_called_at_begin_after_rounds_and_at_end(tmp_path, quiet):
    noting, rounds = Noting(), []
    result = train(TINY, tmp_path / "run", callbacks=[noting, rounds.append])
    assert noting.heard == [
        ("begin", 0, False),
        *(("round", record["accuracy"]) for record in quiet.metrics),
        ("end", True, quiet.accuracy),
    ]
    untimed = [{**record, "seconds": 0} for record in result.metrics]
    assert [{**record, "seconds": 0} for record in rounds] == untimed


def test_they_change_nothing(tmp_path, quiet):
    result = train(TINY, tmp_path / "run", callbacks=[Meddling()])
    assert len(result.metrics) == 3
    assert differences(result.path, quiet.path) == []


def test_an_exception_ends_a_run_that_can_go_on(tmp_path, quiet):
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(TINY, tmp_path / "run", callbacks=[Failing()])
    stopped = fedtiny.load_run(tmp_path / "run")
    assert (stopped.finished, len(stopped.metrics)) == (False, 2)
    noting = Noting()
    fedtiny.resume(tmp_path / "run", callbacks=[noting], reporter=Silent())
    last = ("round", quiet.metrics[-1]["accuracy"])
    assert noting.heard == [("begin", 2, False), last, ("end", True, quiet.accuracy)]
    assert differences(tmp_path / "run", quiet.path) == []


@pytest.mark.parametrize("kind", [KeyError, ValueError, ZeroDivisionError, KeyboardInterrupt])
def test_what_a_callback_raises_comes_through_a_resumed_run(kind, stopped_once, tmp_path):
    def fail(record):
        raise kind("mine")

    folder = shutil.copytree(stopped_once, tmp_path / "run")
    with pytest.raises(kind, match="mine"):
        fedtiny.resume(folder, callbacks=[fail], reporter=Silent())
    assert len(fedtiny.load_run(folder).metrics) == 2


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    return stop(TINY, tmp_path_factory.mktemp("stopped") / "run", 1)


@pytest.mark.parametrize(
    ("callbacks", "sentence"),
    [
        (Noting(), "callbacks= takes a list, got Noting; write"),
        ([Noting], "takes instances of fedtiny.Callback or functions, got the class Noting"),
        ([3], "takes instances of fedtiny.Callback or functions, got 3"),
        ([types.SimpleNamespace()], "takes instances of fedtiny.Callback or functions, got name"),
    ],
)
def test_what_is_no_callback_is_refused_before_anything_runs(callbacks, sentence, tmp_path):
    with pytest.raises(ConfigError, match=sentence):
        fedtiny.run(TINY, out=tmp_path / "run", callbacks=callbacks)
    assert not (tmp_path / "run").exists()
