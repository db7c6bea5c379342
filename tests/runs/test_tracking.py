"""Trackers hear every round once, and a run never suffers from one."""

import importlib
import json
import sqlite3
import struct
import sys
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest

import fedtiny
from fedtiny.errors import ConfigError, FedTinyError
from fedtiny.runs.reporter import Silent
from fedtiny.runs.tracking import TRACKERS, Tracked, create, reporting
from fedtiny.runs.tracking.mlflow import KEY

from .tiny import TINY, StopAfter, differences, lines, tiny

SCALARS = ("accuracy", "loss", "train_loss", "density", "bytes_down", "mask_change")


class Notebook:
    """A tracker that remembers; fails where it is told to."""

    def __init__(self, fails=None):
        self.fails, self.subjects, self.logged, self.summaries = fails, [], [], []

    def open(self, subject):
        self._do("open", self.subjects, subject)

    def log(self, step, values):
        self._do("log", self.logged, (step, values))

    def close(self, summary):
        self._do("close", self.summaries, summary)

    def _do(self, moment, where, what):
        if self.fails == moment:
            raise OSError("the network is down\nand more")
        where.append(what)


def track(trackers, out, config=TINY, reporter=None):
    return fedtiny.run(config, out=out, reporter=Tracked(reporter or Silent(), trackers))


def go_on(trackers, path):
    return fedtiny.resume(path, reporter=Tracked(Silent(), trackers))


def cut(trackers, out, rounds, config=TINY):
    with pytest.raises(KeyboardInterrupt):
        track(trackers, out, config, StopAfter(rounds))


def test_every_round_is_told_with_its_figures(finished, tmp_path):
    book = Notebook()
    path = track({"book": book}, tmp_path / "run").path
    (subject,) = book.subjects
    assert (subject.name, subject.folder, subject.rounds) == ("run", path, 0)
    assert subject.settings["density"] == 0.3
    assert [step for step, _ in book.logged] == [1, 2, 3]
    for (_, values), record in zip(book.logged, lines(path), strict=True):
        assert {key: values[key] for key in SCALARS} == {key: record[key] for key in SCALARS}
        assert values["layer_density/4.weight"] == record["densities"]["4.weight"]
        assert all(isinstance(value, int | float) for value in values.values())
    assert book.summaries[0]["accuracy"] == finished.accuracy
    assert differences(finished.path, path) == [], "tracking changes nothing"


def test_a_resumed_run_tells_no_round_twice_and_none_too_few(tmp_path):
    """The round in which the run was cut was saved, but the tracker had not heard of it."""
    before, after = Notebook(), Notebook()
    cut({"book": before}, tmp_path / "run", 2)
    go_on({"book": after}, tmp_path / "run")
    assert [step for step, _ in before.logged] == [1]
    assert [step for step, _ in after.logged] == [2, 3]
    assert after.subjects[0].key == before.subjects[0].key
    assert after.subjects[0].rounds == 1
    assert before.summaries == [{}], "a run that was stopped has no result"


def test_rounds_that_are_played_again_are_not_told_again(tmp_path):
    """Checkpoints are rarer than rounds, so the resumed run repeats what was told already."""
    before, after = Notebook(), Notebook()
    cut({"book": before}, tmp_path / "run", 3, tiny(rounds=4, checkpoint_every=4))
    go_on({"book": after}, tmp_path / "run")
    assert [step for step, _ in (*before.logged, *after.logged)] == [1, 2, 3, 4]


def test_a_tracker_that_comes_late_hears_all_rounds(tmp_path):
    cut({}, tmp_path / "run", 2)
    straggler = Notebook()
    go_on({"late": straggler}, tmp_path / "run")
    assert [step for step, _ in straggler.logged] == [1, 2, 3]


@pytest.mark.parametrize("moment", ["open", "log", "close"])
def test_a_tracker_that_fails_is_left_out_and_told_of_once(finished, tmp_path, capsys, moment):
    broken, whole = Notebook(fails=moment), Notebook()
    path = track({"broken": broken, "whole": whole}, tmp_path / "run").path
    assert capsys.readouterr().err == (
        "fedtiny: tracker 'broken' failed and is left out (OSError: the network is down)\n"
    )
    assert [step for step, _ in whole.logged] == [1, 2, 3]
    assert len(whole.summaries) == 1
    assert differences(finished.path, path) == []


def test_a_damaged_note_of_what_was_told_costs_nothing(tmp_path):
    cut({"book": Notebook()}, tmp_path / "run", 2)
    (tmp_path / "run" / "trackers.json").write_text("{")
    book = Notebook()
    go_on({"book": book}, tmp_path / "run")
    assert [step for step, _ in book.logged] == [1, 2, 3]


def test_a_wrong_name_is_told_with_the_right_one():
    with pytest.raises(ConfigError, match=r"no tracker 'tensorbord' .* did you mean 'tensorboard'"):
        create(["tensorbord"])


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_names_its_extra_before_anything_runs(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(FedTinyError, match=rf"{name} is not installed.*fedtiny\[{name}\]"):
        reporting([name])


def scalars(folder):
    """Every scalar in TensorBoard's files, as it would show them."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    ).EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: {event.step: event.value for event in accumulator.Scalars(tag)}
        for tag in accumulator.Tags()["scalars"]
    }


def test_tensorboard_shows_every_round_once_after_a_stop(tmp_path):
    pytest.importorskip("tensorboard")
    path = tmp_path / "run"
    cut(create(["tensorboard"]), path, 2)
    go_on(create(["tensorboard"]), path)
    shown = scalars(path / "tensorboard")
    for key in SCALARS:
        expected = {record["round_number"]: record[key] for record in lines(path)}
        assert shown[key] == pytest.approx(expected, rel=1e-6)
    assert len(shown["layer_density/8.weight"]) == 3


def stored(client):
    """The run of MLflow that a store holds, and its accuracy by round."""
    experiment = client.get_experiment_by_name("fedtiny").experiment_id
    (run,) = client.search_runs([experiment])
    history = client.get_metric_history(run.info.run_id, "accuracy")
    return run, [(metric.step, metric.value) for metric in history]


def test_mlflow_holds_every_round_once_after_a_stop(tmp_path, monkeypatch):
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path = tmp_path / "run"
    cut(create(["mlflow"]), path, 2)
    client = tracking.MlflowClient(tracking_uri=(path / "mlruns").as_uri())
    assert stored(client)[0].info.status == "KILLED"
    go_on(create(["mlflow"]), path)
    run, told = stored(client)
    assert run.info.status == "FINISHED"
    assert (run.info.run_name, run.data.params["density"]) == ("run", "0.3")
    assert run.data.params["fleet.devices"] == "3"
    assert told == [(record["round_number"], record["accuracy"]) for record in lines(path)]


def test_mlflow_writes_through_no_link(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mlflow.tracking")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path, thesis = tmp_path / "run", tmp_path / "thesis.tex"
    cut(create(["mlflow"]), path, 2)
    thesis.write_text("0 0.5 0\n")
    (metric,) = (path / "mlruns").glob("*/*/metrics/accuracy")
    metric.unlink()
    metric.symlink_to(thesis)
    go_on(create(["mlflow"]), path)
    assert thesis.read_text() == "0 0.5 0\n"
    (told,) = capsys.readouterr().err.splitlines()
    assert "tracker 'mlflow' failed" in told
    assert f"{metric}: it is a symbolic link" in told
    assert len(lines(path)) == 3


class Ledger:
    """What of MLflow's client is called, with the limits that MLflow sets."""

    def __init__(self, tracking_uri):
        self.uri, self.runs, self.params, self.metrics = tracking_uri, [], {}, []
        Ledger.opened.append(self)

    opened: ClassVar[list] = []

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return f"experiment {name}"

    def search_runs(self, experiments, filter_string):
        return [run for run in self.runs if filter_string.endswith(f"'{run.tags[KEY]}'")]

    def create_run(self, experiment, run_name, tags):
        info = SimpleNamespace(run_id="1", run_name=run_name, experiment=experiment, status="")
        self.runs.append(SimpleNamespace(info=info, tags=tags))
        return self.runs[-1]

    def log_batch(self, run, params=(), metrics=()):
        assert run == "1"
        assert len(params) <= 100, "MLflow takes no more"
        self.params |= dict(params)
        self.metrics += metrics

    def update_run(self, run, status):
        self.runs[0].info.status = status

    set_terminated = update_run


def test_what_mlflow_is_told(tmp_path, monkeypatch):
    """Without the package: a stand-in for its client."""
    tracking = SimpleNamespace(MlflowClient=Ledger)
    entities = SimpleNamespace(
        Param=lambda name, value: (name, value),
        Metric=lambda name, value, time, step: (name, value, step),
    )
    for name, module in {"tracking": tracking, "entities": entities}.items():
        monkeypatch.setitem(sys.modules, f"mlflow.{name}", module)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(__path__=[], **vars(tracking)))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://mlflow.example")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    Ledger.opened.clear()
    path = track(create(["mlflow"]), tmp_path / "run").path
    (ledger,) = Ledger.opened
    assert ledger.uri == "https://mlflow.example"
    assert not (path / "mlruns").exists()
    (run,) = ledger.runs
    assert (run.info.experiment, run.info.run_name) == ("experiment mine", "run")
    assert run.info.status == "FINISHED"
    assert ledger.params["data.limit_train"] == "120"
    told = [(step, value) for name, value, step in ledger.metrics if name == "accuracy"]
    assert told == [(record["round_number"], record["accuracy"]) for record in lines(path)]


def test_trackio_holds_every_round_once_after_a_stop(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    path = tmp_path / "run"
    cut(create(["trackio"]), path, 2)
    go_on(create(["trackio"]), path)
    (file,) = (tmp_path / "trackio").glob("*.db")
    with sqlite3.connect(file) as base:
        found = base.execute("SELECT step, metrics FROM metrics ORDER BY step").fetchall()
    base.close()
    told = {step: json.loads(metrics)["accuracy"] for step, metrics in found}
    assert len(found) == 3
    assert told == {record["round_number"]: record["accuracy"] for record in lines(path)}


def test_wandb_writes_every_round_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    path = track(create(["wandb"]), tmp_path / "run").path
    (file,) = (path / "wandb").glob("offline-run-*/run-*.wandb")
    history = offline_history(file)
    assert [row["_step"] for row in history] == [1, 2, 3]
    assert [row["accuracy"] for row in history] == [record["accuracy"] for record in lines(path)]


def offline_history(file):
    """The rows that `wandb sync` would send."""
    return [
        {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        for record in whole_records(file)
        if record.WhichOneof("record_type") == "history"
    ]


def whole_records(file):
    """Everything up to the record of the run's exit, which wandb's own process writes in time."""
    kind = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    for _ in range(300):
        found = [kind.FromString(data) for data in log_records(file.read_bytes())]
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        time.sleep(0.1)
    raise AssertionError("wandb did not write its file to the end")


def log_records(data, block=32768, full=1, first=2, last=4):
    """LevelDB's log format: blocks of pieces, each with checksum, length and kind before it."""
    place, pieces = 7, []
    while place + 7 <= len(data):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        pieces = [] if kind in (full, first) else pieces
        pieces.append(data[place + 7 : place + 7 + length])
        if kind in (full, last):
            yield b"".join(pieces)
        place += 7 + length
