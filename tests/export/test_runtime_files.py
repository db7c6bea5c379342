"""The C sources that an export is made of travel with an installed package."""

import subprocess
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from fedtiny.export import c_runtime

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "src" / "fedtiny" / "export" / "runtime"
HEADERS = ("model.h", "model_bytes.h", "model_raw.h")
ALWAYS = ("tensor", "profile", "run", "run_raw", "main")
EXCLUDING = ("exclude", "only-include", "include", "sources")


def test_every_part_is_found_and_none_lies_idle():
    folder = files("fedtiny.export").joinpath("runtime")
    names = {f"{part}.c" for part in (*c_runtime.PARTS, *ALWAYS)} | set(HEADERS)
    assert {entry.name for entry in folder.iterdir()} == names
    for name in names:
        assert folder.joinpath(name).read_text(encoding="ascii").strip(), name


def test_the_wheel_takes_the_whole_package():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    assert wheel["packages"] == ["src/fedtiny"]
    assert not {*build, *wheel} & set(EXCLUDING)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_git_ignores_no_part():
    """What git ignores, hatch leaves out."""
    order = ["git", "check-ignore", "--no-index", *map(str, RUNTIME.iterdir())]
    told = subprocess.run(order, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (1, ""), "1 tells that none is ignored"
