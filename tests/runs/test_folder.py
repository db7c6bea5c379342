"""Files are written whole or not at all, and nothing is overwritten."""

import errno
import os
from pathlib import Path

import pytest

from fedtiny.errors import RunError
from fedtiny.runs.folder import RunFolder, append_line, write_atomically


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, where):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os if where == "fsync" else Path, where, fail)
    with pytest.raises(RunError, match=r"cannot write .*file: No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_on_disk_before_it_takes_the_place_of_the_old_one(tmp_path, monkeypatch):
    done = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append("sync"), sync(fd)))
    monkeypatch.setattr(Path, "replace", lambda *a: (done.append("replace"), replace(*a)))
    write_atomically(tmp_path / "file", b"new")
    assert done == ["sync", "replace", "sync"]


def test_lines_are_added_one_below_the_other(tmp_path):
    append_line(tmp_path / "lines", "one")
    append_line(tmp_path / "lines", "two")
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"
    with pytest.raises(RunError, match=r"cannot write .*: Is a directory"):
        append_line(tmp_path, "three")


def test_a_new_folder_may_lie_deep_or_be_there_empty(tmp_path):
    assert RunFolder.create(tmp_path / "a" / "b").path == tmp_path / "a" / "b"
    assert RunFolder.create(tmp_path / "a" / "b").path.is_dir()


@pytest.mark.parametrize("name", ["config.toml", "notes.txt", ".hidden"])
def test_a_folder_that_holds_anything_is_refused(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=r"is not empty; choose another --out, or .*fedtiny resume"):
        RunFolder.create(tmp_path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


def test_a_folder_cannot_lie_below_a_file_or_be_one(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match=f"cannot make the run folder {path}"):
            RunFolder.create(path)
    with pytest.raises(RunError, match="cannot make a run folder in"):
        RunFolder.create_below(tmp_path / "file", "run")


def test_free_names_are_counted_up(tmp_path):
    made = [RunFolder.create_below(tmp_path / "runs", "x").path.name for _ in range(3)]
    assert made == ["x", "x-2", "x-3"]
    (tmp_path / "runs" / "x-2").rmdir()
    assert RunFolder.create_below(tmp_path / "runs", "x").path.name == "x-2"


def test_a_lock_is_held_once_and_given_back(tmp_path):
    folder = RunFolder(tmp_path)
    with folder.locked(), pytest.raises(RunError, match="another process"), folder.locked():
        raise AssertionError("two at once")
    with folder.locked():
        pass


def refuse_to_write(monkeypatch, error):
    really_open = Path.open

    def open_or_fail(path, mode="r", *arguments, **named):
        if mode[0] in "wa":
            raise error
        return really_open(path, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", open_or_fail)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied"),
        pytest.param(
            OSError(errno.EROFS, "Read-only file system"),
            marks=pytest.mark.xfail(
                strict=True, reason="locked() knows PermissionError only: a traceback"
            ),
        ),
    ],
    ids=["permission denied", "read-only file system"],
)
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch, error):
    refuse_to_write(monkeypatch, error)
    with pytest.raises(RunError, match=f"cannot write to the run folder {tmp_path}"):  # noqa: SIM117
        with RunFolder(tmp_path).locked():
            pass


@pytest.mark.xfail(
    strict=True, reason="locked() takes any PermissionError of the run for one of the lock"
)
def test_a_permission_that_lacks_elsewhere_is_not_put_down_to_the_folder(tmp_path):
    with pytest.raises(PermissionError, match="elsewhere"), RunFolder(tmp_path).locked():
        raise PermissionError(errno.EACCES, "Permission denied", "elsewhere")
