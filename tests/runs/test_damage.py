"""A run folder from elsewhere runs no code, writes nowhere else and ends in a sentence."""

import contextlib
import copy
import json
import os
import shutil

import pytest
from rich.console import Console
from safetensors.numpy import save

import fedtiny
from fedtiny.cli.inspect import show
from fedtiny.cli.main import dispatch
from fedtiny.errors import FedTinyError, RunError
from fedtiny.files import (
    append_line,
    digest_of,
    make_closed_folder,
    read_file,
    read_json,
    with_text,
    write_atomically,
    write_new,
)
from fedtiny.report.page import one_run
from fedtiny.report.run import read
from fedtiny.runs.folder import RunFolder
from fedtiny.runs.reporter import Silent

from . import fuzz_folders
from .tiny import FLAGS, TINY, assert_one_sentence, differences, stop, tiny

MUTATIONS = 60


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes that have a name")
def test_damaged_folders_end_in_a_sentence(tmp_path):
    """A share of what `make fuzz` does."""
    found = fuzz_folders.run(MUTATIONS, seed=7, place=tmp_path)
    assert found["wrong"] == []
    assert found["trials"] == MUTATIONS
    assert min(found["codes"].values()) > MUTATIONS / 10, "some are refused, some do no harm"


def test_a_best_model_that_is_none_is_refused_before_training(tmp_path, capsys):
    """Under a checksum that fits."""
    path = stop(tiny(save_best=True), tmp_path / "run", 2)
    file = path / "checkpoint.safetensors"
    tensors, text = with_text(file.read_bytes(), "fedtiny")
    tensors["method.best.mask.indices"] = tensors["method.best.mask.indices"][::-1].copy()
    state = json.loads(text)["state"]
    signed = json.dumps({"state": state, "digest": digest_of(tensors, state)})
    file.write_bytes(save(tensors, {"fedtiny": signed}))
    code = dispatch(["resume", str(path)])
    assert_one_sentence(code, capsys.readouterr().err, "checkpoint.safetensors is damaged")


def places(value, at=()):
    """Where a value lies within plain data."""
    if isinstance(value, dict | list) and len(at) < 4:
        keys = list(value) if isinstance(value, dict) else range(min(2, len(value)))
        for key in keys:
            yield (*at, key)
            yield from places(value[key], (*at, key))


def without(value, place, other):
    """The same data with another value there, or with none."""
    changed = inner = copy.deepcopy(value)
    for key in place[:-1]:
        inner = inner[key]
    if other is None:
        del inner[place[-1]]
    else:
        inner[place[-1]] = other
    return changed


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "result.json", "selection.json", "about.json", "evaluation.json"]
)
@pytest.mark.parametrize("other", [None, 0, "x"], ids=["missing", "zero", "text"])
def test_every_field_may_be_missing_or_odd(finished, tmp_path, capsys, name, other):
    folder = RunFolder(shutil.copytree(finished.path, tmp_path / "run"))
    *before, last = (
        (folder.path / name).read_text().splitlines()
        if "jsonl" in name
        else ((folder.path / name).read_text(),)
    )
    value = json.loads(last)
    for place in places(value):
        lines = [*before, json.dumps(without(value, place, other))]
        (folder.path / name).write_text("\n".join([*lines, ""]))
        one_run(read(folder))
        with contextlib.suppress(FedTinyError):
            show(folder, Console())


@pytest.fixture
def thesis(tmp_path):
    """Somebody's work, which a link in a run folder may point to."""
    path = tmp_path / "elsewhere" / "thesis.tex"
    path.parent.mkdir()
    path.write_text("my work")
    yield path
    assert path.read_text() == "my work"
    assert [file.name for file in path.parent.iterdir()] == ["thesis.tex"]


def test_a_lock_that_is_a_link_is_not_followed(stopped, thesis, capsys):
    (stopped / ".lock").unlink()
    (stopped / ".lock").symlink_to(thesis)
    code = dispatch(["resume", str(stopped)])
    assert_one_sentence(code, capsys.readouterr().err, ".lock: it is a symbolic link", "remove it")
    assert not RunFolder(stopped).is_locked()


@pytest.mark.parametrize("name", [".metrics.jsonl.tmp", ".checkpoint.safetensors.tmp"])
def test_temporary_files_are_new_ones(finished, stopped, thesis, name):
    (stopped / name).symlink_to(thesis)
    fedtiny.resume(stopped, reporter=Silent())
    assert differences(finished.path, stopped) == []


@pytest.mark.parametrize("name", ["report.html", "model.packed", "metrics.jsonl", "result.json"])
def test_outputs_take_the_place_of_a_link(finished, tmp_path, thesis, name):
    path = stop(TINY, tmp_path / "run", 3)
    text = (path / name).read_bytes() if (path / name).exists() else b""
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(thesis)
    code = dispatch(["resume", str(path)])
    if code:  # metrics that are somebody's thesis
        (path / name).unlink()
        (path / name).write_bytes(text)
        assert dispatch(["resume", str(path)]) == 0
    assert not (path / name).is_symlink()
    assert differences(finished.path, path) == []


@pytest.mark.parametrize(
    ("name", "command"), [("report_figures", ["report"]), ("model_c", ["export", "--format", "c"])]
)
def test_a_folder_of_outputs_is_no_link(finished, tmp_path, thesis, capsys, name, command):
    path = shutil.copytree(finished.path, tmp_path / "run")
    (path / name).symlink_to(thesis.parent)
    code = dispatch([command[0], str(path), *command[1:]])
    assert_one_sentence(code, capsys.readouterr().err, f"{name}: it is a symbolic link")


def test_a_run_folder_may_itself_be_reached_through_a_link(finished, tmp_path):
    (tmp_path / "large disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "large disk")
    out = tmp_path / "runs" / "run"
    assert dispatch(["run", *FLAGS, "--out", str(out)]) == 0
    assert differences(finished.path, tmp_path / "large disk" / "run") == []


def test_nothing_is_written_through_a_link(tmp_path, thesis):
    link = tmp_path / "link"
    link.symlink_to(thesis)
    with pytest.raises(RunError, match="symbolic link"):
        append_line(link, "more")
    with pytest.raises(FileExistsError):
        write_new(link, b"new")
    write_atomically(link, b"new")
    assert (link.read_bytes(), link.is_symlink()) == (b"new", False)


@pytest.mark.parametrize("target", ["thesis", "folder", "nothing", "../metrics.jsonl"])
def test_a_tracker_gets_no_folder_with_a_way_out(tmp_path, thesis, target):
    place, out = tmp_path / "mlruns", {"thesis": thesis, "folder": thesis.parent}
    (place / "0" / "metrics").mkdir(parents=True)
    (place / "latest").symlink_to("0")  # as W&B makes them
    make_closed_folder(place)
    (place / "0" / "metrics" / "loss").symlink_to(out.get(target, place / ".." / target))
    with pytest.raises(RunError, match="loss: it is a symbolic link"):
        make_closed_folder(place)


def test_a_tracker_gets_no_folder_with_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "loss")
    with pytest.raises(RunError, match="loss: it is not a regular file; remove it"):
        make_closed_folder(tmp_path)


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    pipe, large, plain = tmp_path / "pipe", tmp_path / "large", tmp_path / "plain"
    os.mkfifo(pipe)
    large.touch()
    os.truncate(large, 1 << 42)
    plain.write_bytes(b"abc")
    for path, told in ((pipe, "not a regular file"), (large, "larger than"), (tmp_path, "direc")):
        with pytest.raises(OSError, match=told):
            read_file(path)
        with pytest.raises(RunError, match=f"cannot read {path}: .*{told}"):
            read_json(path)
    assert read_file(plain, most=3) == b"abc"
    os.truncate(large, 1 << 36)
    with pytest.raises(OSError, match="there is no memory for its 68,719,476,736 bytes"):
        read_file(large, most=1 << 36)


def test_plain_data_is_bounded_and_printable(tmp_path):
    path = tmp_path / "x.json"
    for text in ('{"a": ' * 30 + "1" + "}" * 30, '{"a": 1' + "0" * 30 + "}", "[" * 9999):
        path.write_text(text)
        with pytest.raises(RunError, match="is damaged"):
            read_json(path)
    path.write_text('{"a": ' * 20 + "1" + "}" * 20)
    assert read_json(path)
    path.write_text('{"a\\u001b": "b\\n", "c": NaN, "d": 1e999}')
    assert read_json(path) == {"a?": "b?", "c": None, "d": None}
