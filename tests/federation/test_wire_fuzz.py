"""Ten thousand mutated payloads: only our own errors, little memory, an end in sight."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PAYLOADS = 10_000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's limits")
def test_mutated_payloads_neither_crash_nor_hang_nor_hoard():
    command = [sys.executable, "-m", "tests.federation.fuzz_wire", "--payloads", str(PAYLOADS)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    errors = {"WireError", "MissingVersion", "ReplyError"}
    assert report["outcomes"].keys() == {"read", *errors}
    assert sum(report["outcomes"].values()) == PAYLOADS
    assert report["outcomes"]["read"] > PAYLOADS / 100  # what was changed was a value
    assert report["outcomes"]["WireError"] > PAYLOADS / 4
    assert report["outcomes"]["ReplyError"] > PAYLOADS / 8
    assert report["share_of_bound"] < 1
