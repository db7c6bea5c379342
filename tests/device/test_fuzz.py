"""A few damaged streams to fedtiny-device under sanitizers; `tests.device.fuzz` has more time."""

import subprocess

import pytest

from fedtiny.native.compile import compiler
from fedtiny.native.library import path

from .fuzz import build

MESSAGES = 5000


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None or path() is None, reason="needs the native library")
def test_damaged_messages_are_answered_in_bounded_memory(tmp_path):
    command = build(tmp_path, library=path())
    done = subprocess.run(
        [*command, str(MESSAGES), "7"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(f"{MESSAGES} messages: ")
