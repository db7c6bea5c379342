"""The script that holds two versions of fedtiny against each other."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedtiny.native.library import available

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "compare_versions.py"


def compare(only, *flags):
    order = [sys.executable, str(SCRIPT), str(ROOT), str(ROOT), "--only", only]
    return subprocess.run([*order, *flags], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="needs the native library")
def test_a_version_equals_itself_and_another_seed_is_a_difference():
    same = compare("fedtiny, native, 1")
    assert same.stdout.endswith("2 comparisons, 0 different\n"), same.stderr
    assert same.returncode == 0
    other = compare("small, native, 1", "--new-flags=--seed 1")
    assert "DIFFERENT: model, mask" in other.stdout
    assert other.returncode == 1
