"""A disk that is full, broken or read-only ends a run in one sentence; mended, it goes on."""

import errno
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from .tiny import FLAGS, differences

COMMAND = ["run", *FLAGS, "--rounds", "1"]
CODES = (errno.ENOSPC, errno.EIO, errno.EROFS)
SOME = (1, 2, 5, 17, 30, 60)


@pytest.fixture(scope="module")
def whole(fedtiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    fedtiny.to_the_end(*COMMAND, "--out", str(path))
    return path


def fails(fedtiny, whole, path, call, code):
    """Whether there are so many operations; that one fails, and the run comes to its end after."""
    start = [*COMMAND, "--out", str(path)]
    trap = {"failing": code, "call": call, "folder": str(path)}
    ended = fedtiny(*start, **trap)
    where = f"operation {call} fails with {os.strerror(code)}:\n{ended['output']}"
    said = [line for line in ended["output"].splitlines() if os.strerror(code) in line]
    assert "Traceback" not in ended["output"], where
    assert len(said) <= 1, where
    if ended["code"]:
        assert ended["code"] == 1, where
        assert said, where
        assert said[0].startswith("fedtiny: error: "), where
    begun = (path / "config.toml").exists()
    fedtiny.to_the_end(*(["resume", str(path)] if begun else start))
    assert differences(whole, path) == [], where
    assert (path / "model.packed").read_bytes() == (whole / "model.packed").read_bytes(), where
    return bool(ended["code"] or said)


@pytest.mark.parametrize("call", SOME)
def test_some_operations_fail(fedtiny, whole, tmp_path, call):
    fails(fedtiny, whole, tmp_path / "run", call, CODES[call % 3])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 1 + len(CODES)))
def test_each_operation_fails(fedtiny, whole, tmp_path, first):
    """Until the last ones are not needed any more; each with one of the errors in turn."""
    call, in_vain, failed = first, 0, 0
    while in_vain < 4:
        told = fails(fedtiny, whole, tmp_path / str(call), call, CODES[call % 3])
        in_vain, failed = 0 if told else in_vain + 1, failed + told
        call += len(CODES)
    assert failed > 26


READERS = {
    "inspect": ["inspect", "RUN"],
    "report": ["report", "RUN"],
    "export": ["export", "RUN", "--values", "int8"],
    "torch": ["export", "RUN", "--format", "torch"],
    "c": ["export", "RUN", "--format", "c"],
    "predict": ["predict", "RUN", "RUN/image.png"],
    "resume": ["resume", "RUN"],
    "cost": ["cost", "RUN/config.toml"],
}


@pytest.mark.parametrize("name", READERS)
def test_every_command_ends_in_one_sentence(fedtiny, whole, tmp_path, name):
    path = shutil.copytree(whole, tmp_path / "run")
    Image.fromarray(np.full((8, 8), 90, dtype=np.uint8)).save(path / "image.png")
    order = [word.replace("RUN", str(path)) for word in READERS[name]]
    for call in (1, 2, 3, 8, 21):
        code = CODES[call % 3]
        ended = fedtiny(*order, failing=code, call=call, folder=str(path))
        where = f"operation {call} fails with {os.strerror(code)}:\n{ended['output']}"
        assert ended["code"] in (0, 1), where
        assert "Traceback" not in ended["output"], where
        assert ended["output"].count("fedtiny: error: ") == ended["code"], where
