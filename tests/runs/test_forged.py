"""Run folders whose checksums fit and whose content lies: a sentence, or what was found."""

import json
import shutil

import numpy as np
import pytest

import fedtiny
from fedtiny.cli.main import dispatch
from fedtiny.errors import RunError
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.recorder import BEGINS_AGAIN, Saved
from fedtiny.runs.reporter import Silent
from fedtiny.runs.split import load_split

from .forgery import deep_table, empty_device, open_forged, sign
from .tiny import FLAGS, assert_one_sentence, differences, stop, tiny

FIRST = "method.server optimizer: first moment"


def forge(path, change):
    """Change the tensors of a file, or what it tells, and sign it again."""
    tensors, told = open_forged(path)
    change(tensors, told)
    sign(path, tensors, told)


def refused(capsys, *arguments):
    """The sentence that a command ends with."""
    capsys.readouterr()
    code = dispatch([str(argument) for argument in arguments])
    err = capsys.readouterr().err
    assert_one_sentence(code, err)
    return err


@pytest.fixture(scope="module")
def with_momentum(tmp_path_factory):
    """A stopped run whose server remembers arrays of its own."""
    config = tiny(server={"optimizer": "fedavgm"}, save_best=True)
    return stop(config, tmp_path_factory.mktemp("momentum") / "run", 2)


@pytest.fixture
def forged(with_momentum, tmp_path):
    return shutil.copytree(with_momentum, tmp_path / "run")


def test_a_signed_file_that_says_the_same_is_taken(forged):
    for name in ("checkpoint", "partition"):
        forge(forged / f"{name}.safetensors", lambda tensors, told: None)
    fedtiny.resume(forged, reporter=Silent())


@pytest.mark.parametrize("depth", [150, 900, 5000])
def test_memory_that_is_too_deep_is_damaged(forged, capsys, depth):
    text = '{"a":' * depth + "1" + "}" * depth
    path = forged / "checkpoint.safetensors"
    tensors, told = open_forged(path)
    told["memory"] = "DEEP"
    sign(path, tensors, json.dumps(told).replace('"DEEP"', text))
    assert "checkpoint.safetensors is damaged" in refused(capsys, "resume", forged)


def test_memory_of_a_usual_depth_is_taken(forged):
    path = forged / "checkpoint.safetensors"
    forge(path, lambda _, told: told["memory"].update(more=deep_table(50)))
    fedtiny.resume(forged, reporter=Silent())


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("name", ["theta", FIRST, "method.best.theta", "method.initial theta"])
def test_values_that_cannot_be_computed_with_begin_again(forged, with_momentum, name, value):
    def poison(tensors, _):
        tensors[name] = tensors.get(name, tensors["theta"]).copy()
        tensors[name][3] = value

    forge(forged / "checkpoint.safetensors", poison)
    assert Saved.of(RunFolder(forged)).note == BEGINS_AGAIN


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_method_may_keep_any_value_in_arrays_of_its_own(forged, value):
    """Say a best score that is -inf before any is known: the run goes on, nothing is lost."""
    own = {"method.best_score": np.full(1, value), "method.scores": np.full((2, 3), value, "f4")}
    forge(forged / "checkpoint.safetensors", lambda tensors, _: tensors.update(own))
    saved = Saved.of(RunFolder(forged))
    assert (saved.note, saved.checkpoint is not None, len(saved.records)) == ("", True, 2)
    lines = (forged / "metrics.jsonl").read_text().splitlines()[:2]
    fedtiny.resume(forged, reporter=Silent())
    assert (forged / "metrics.jsonl").read_text().splitlines()[:2] == lines
    kept = open_forged(forged / "checkpoint.safetensors")[0]
    assert all(np.array_equal(kept[n], a, equal_nan=True) for n, a in own.items())


def test_a_checkpoint_of_two_billion_rounds_lacks_their_lines(forged, capsys):
    path = forged / "checkpoint.safetensors"
    forge(path, lambda _, told: told.update(round=(1 << 31) - 1))
    assert "lacks some of the 2147483647 rounds" in refused(capsys, "resume", forged)


def test_a_run_that_begins_again_ends_as_it_would_have(forged, with_momentum, tmp_path):
    forge(forged / "checkpoint.safetensors", lambda t, _: t.update(theta=t["theta"] * np.nan))
    whole = shutil.copytree(with_momentum, tmp_path / "whole")
    for path in (forged, whole):
        fedtiny.resume(path, reporter=Silent())
    assert differences(forged, whole) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda t, _: t.update({FIRST: t[FIRST][:1]}),
        lambda t, _: t.update({FIRST: t[FIRST][None]}),
        lambda t, _: t.update({FIRST: t[FIRST].astype(np.float64)}),
        lambda t, _: t.update({"theta": t["theta"][:-1]}),
        lambda t, _: t.update({"method.best.theta": t["method.best.theta"][1:]}),
        lambda t, _: t.pop("method.best.mask.counts"),
    ],
    ids=["broadcast", "shape", "kind", "theta", "best", "gone"],
)
def test_arrays_of_another_shape_are_damaged(forged, capsys, change):
    forge(forged / "checkpoint.safetensors", change)
    assert "checkpoint.safetensors is damaged" in refused(capsys, "resume", forged)


def test_what_a_method_cannot_remember_names_the_checkpoint(forged, capsys, monkeypatch):
    """Only the method knows what it keeps."""
    monkeypatch.setattr("fedtiny.runs.runner.keep_best", lambda server, _: server.memory["x"])
    said = refused(capsys, "resume", forged)
    assert "cannot go on from" in said
    assert "KeyError: 'x'" in said
    assert "fedtiny run" in said


def test_an_empty_device_is_damage(forged, capsys):
    forge(forged / "partition.safetensors", lambda tensors, _: empty_device(tensors))
    with pytest.raises(RunError, match=r"partition\.safetensors is damaged"):
        load_split(RunFolder(forged))
    for command in ("resume", "inspect"):
        assert "partition.safetensors is damaged" in refused(capsys, command, forged)


def test_a_table_of_other_samples_is_damage(forged, capsys):
    def more(tensors, _):
        tensors["table"] = tensors["table"].copy()
        tensors["table"][0, 0] += 1

    forge(forged / "partition.safetensors", more)
    assert "partition.safetensors is damaged" in refused(capsys, "inspect", forged)


@pytest.mark.parametrize("value", [np.nan, 3e38])
@pytest.mark.parametrize("format", ["packed", "onnx", "torch", "c"])
def test_a_final_model_that_cannot_be_computed_with_is_not_exported(
    finished, tmp_path, capsys, value, format
):
    folder = shutil.copytree(finished.path, tmp_path / "run")

    def poison(tensors, _):
        name = sorted(name for name in tensors if name.endswith("weight"))[0]
        tensors[name] = np.full_like(tensors[name], value)

    forge(folder / "model.safetensors", poison)
    (folder / "model.packed").unlink(missing_ok=True)
    assert "model.safetensors holds NaN" in refused(capsys, "export", folder, "--format", format)
    weights = ("run", *FLAGS, "--weights", folder / "model.safetensors", "--out", tmp_path / "new")
    assert "holds NaN or infinity before any training" in refused(capsys, *weights)


@pytest.mark.parametrize("depth", [30, 900])
def test_a_packed_model_with_a_deep_card_is_damaged(finished, tmp_path, capsys, depth):
    folder = shutil.copytree(finished.path, tmp_path / "run")
    path = folder / "model.packed"
    assert dispatch(["export", str(folder)]) == 0
    forge(path, lambda _, told: told["card"].update(more=deep_table(depth)))
    assert "damaged packed model" in refused(capsys, "inspect", path)


def test_only_files_that_were_named_here_are_removed(forged):
    mine = [forged / name for name in (".notes.tmp", ".x.swp.tmp", ".a.0123.tmp", "b.tmp")]
    left = forged / ".metrics.jsonl.0123456789abcdef.tmp"
    for path in (*mine, left):
        path.write_text("my work")
    fedtiny.resume(forged, reporter=Silent())
    assert [path.read_text() for path in mine] == ["my work"] * 4
    assert not left.exists()
