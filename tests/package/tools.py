"""Programs that the extra `package` brings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tool(name):
    """A program beside this Python, or a reason to skip."""
    found = Path(sys.executable).parent / name
    if not found.exists():
        pytest.skip(f"{name} is missing; it comes with: pip install 'fedtiny[package]'")
    return found


def told(*command, cwd=ROOT, env=None):
    """What a program says on its way to a good end; this checkout is not on its path."""
    given = {name: value for name, value in (env or os.environ).items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd, env=given
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
