"""Files are written whole or not at all, and nothing is overwritten."""

import errno
import fcntl
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from fedtiny.errors import RunError
from fedtiny.files import append_line, read_json, write_atomically, write_json
from fedtiny.runs.folder import LockedError, RunFolder, claimed

from .tiny import locked_elsewhere

LOOK = "import sys, pathlib; from fedtiny.runs.folder import RunFolder as F; "
LOOK += "sys.exit(F(pathlib.Path(sys.argv[1])).is_locked())"


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    for name in (".file.0123456789abcdef.tmp", ".model.packed.00000000000000ff.tmp"):
        (tmp_path / name).write_bytes(b"torn")
    (tmp_path / ".spool").mkdir()
    (tmp_path / ".spool" / "0.reply").write_bytes(b"a device's reply")
    with RunFolder(tmp_path).locked():
        assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_plain_data_survives_and_what_is_none_is_named(tmp_path):
    value = {"accuracy": 0.1 + 0.2, "failed": {"3": "out of reach"}, "loss": None}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    for data in (b"", b'{"accur', b"\xff\xfe", b"[1, 2]", b"null"):
        (tmp_path / "x.json").write_bytes(data)
        with pytest.raises(RunError, match=r"x\.json is (missing or )?damaged"):
            read_json(tmp_path / "x.json")
    with pytest.raises(RunError, match=r"y\.json is missing"):
        read_json(tmp_path / "y.json")


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


@pytest.mark.parametrize("name", ["config.toml", "notes.txt", ".hidden", "x.tmp"])
def test_a_folder_that_holds_anything_is_refused(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=r"is not empty; choose another --out, or .*fedtiny resume"):
        RunFolder.create(tmp_path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["mine"]


def test_what_a_kill_left_before_there_was_anything_does_not_count(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.toml.0123456789abcdef.tmp").write_text("dens")
    assert RunFolder.create(tmp_path).path == tmp_path


def test_the_hint_to_resume_can_be_pasted_into_a_shell(tmp_path):
    path = tmp_path / "it's my run"
    path.mkdir()
    (path / "config.toml").touch()
    with pytest.raises(RunError) as raised:
        RunFolder.create(path)
    assert shlex.split(str(raised.value).partition("fedtiny resume ")[2]) == [str(path)]


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


def test_a_lock_is_held_by_one_process_and_given_back(tmp_path):
    folder = RunFolder(tmp_path)
    assert not folder.is_locked()
    with locked_elsewhere(tmp_path):
        assert folder.is_locked()
        with pytest.raises(RunError, match=f"another process is working on {tmp_path}"):  # noqa: SIM117
            with folder.locked():
                raise AssertionError("two at once")
    assert not folder.is_locked()
    with folder.locked():
        pass
    with locked_elsewhere(tmp_path):
        assert folder.is_locked()


def test_looking_at_a_lock_of_one_s_own_does_not_let_go_of_it(tmp_path):
    folder = RunFolder(tmp_path)
    folder.config.touch()
    with folder.locked():
        assert RunFolder(tmp_path).is_locked()
        with pytest.raises(LockedError):
            RunFolder.create(tmp_path)
        with pytest.raises(LockedError):  # noqa: SIM117
            with RunFolder(tmp_path).locked():
                raise AssertionError("two at once")
        assert subprocess.run([sys.executable, "-c", LOOK, tmp_path], check=False).returncode == 1
    assert not folder.is_locked()


def test_a_folder_that_another_process_has_just_begun_is_told_as_its(tmp_path):
    (tmp_path / "config.toml").touch()
    with locked_elsewhere(tmp_path), pytest.raises(LockedError, match="another process is working"):
        RunFolder.create(tmp_path)


def test_asking_for_a_lock_makes_no_file(tmp_path):
    assert not RunFolder(tmp_path).is_locked()
    assert not RunFolder(tmp_path / "nowhere").is_locked()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_without_locks_goes_without(tmp_path, monkeypatch, code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "lockf", fail)
    folder = RunFolder(tmp_path)
    with folder.locked():
        assert folder.lock.exists()
    assert not folder.is_locked()


def refuse_to_write(monkeypatch, error):
    really_open = os.open

    def open_or_fail(path, flags, *arguments, **named):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise error
        return really_open(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", open_or_fail)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied"),
        OSError(errno.EROFS, "Read-only file system"),
    ],
    ids=["permission denied", "read-only file system"],
)
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch, error):
    refuse_to_write(monkeypatch, error)
    with pytest.raises(RunError, match=f"cannot write to the run folder {tmp_path}"):  # noqa: SIM117
        with RunFolder(tmp_path).locked():
            pass


def test_a_permission_that_lacks_elsewhere_is_not_put_down_to_the_folder(tmp_path):
    with pytest.raises(PermissionError, match="elsewhere"), RunFolder(tmp_path).locked():
        raise PermissionError(errno.EACCES, "Permission denied", "elsewhere")


def test_a_claim_keeps_other_processes_away_and_leaves_no_file(tmp_path):
    code = (
        "import sys; from pathlib import Path; from fedtiny.runs.folder import claimed\n"
        "with claimed(Path(sys.argv[1])): print('claimed')"
    )
    order = [sys.executable, "-c", code, str(tmp_path / "cells" / ".one")]
    with claimed(tmp_path / "cells" / ".one"):
        other = subprocess.run(order, capture_output=True, text=True)
        assert "LockedError: another process is working on" in other.stderr
    assert subprocess.run(order, capture_output=True, text=True).stdout == "claimed\n"
    assert not any((tmp_path / "cells").iterdir())
