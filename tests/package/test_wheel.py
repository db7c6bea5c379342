"""What `make dist` left in dist: a wheel that PyPI takes, and that works where nothing else is."""

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from fedtiny import __version__

from .tools import ROOT, told

pytestmark = [pytest.mark.package, pytest.mark.timeout(900)]

NEWEST = (2, 28)  # of the manylinux policies that pip of any Python 3.11 knows


@pytest.fixture(scope="module", name="wheel")
def wheel_():
    """The one wheel, for this machine and every Python."""
    if not sys.platform.startswith("linux"):
        pytest.skip("make dist is for Linux; cibuildwheel makes the other wheels")
    (found,) = (ROOT / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module", name="sources")
def sources_():
    (found,) = (ROOT / "dist").glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def inside(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(inside):
    return email.message_from_bytes(inside[f"fedtiny-{__version__}.dist-info/METADATA"])


def test_auditwheel_and_the_name_say_an_old_manylinux(wheel):
    said = told(sys.executable, "-m", "auditwheel", "show", wheel)
    (policy,) = re.findall(r'platform tag:\s+"manylinux_(\d+)_(\d+)_\w+"', said)
    assert tuple(map(int, policy)) <= NEWEST
    name, version, python, abi, platforms = wheel.stem.split("-")
    assert (name, version, python, abi) == ("fedtiny", __version__, "py3", "none")
    assert f"manylinux_{policy[0]}_{policy[1]}_{os.uname().machine}" in platforms.split(".")
    assert all(platform.startswith("manylinux") for platform in platforms.split("."))


def test_twine_takes_both(wheel, sources):
    said = told(sys.executable, "-m", "twine", "check", "--strict", wheel, sources)
    assert said.count("PASSED") == 2


def files(*folders):
    """What is in the repository: all but what git ignores."""
    order = ("git", "ls-files", "--cached", "--others", "--exclude-standard")
    return set(told(*order, *folders).splitlines())


def test_the_wheel_holds_the_package_and_what_travels_with_it(inside):
    tracked = files("src/fedtiny", "experiments", "benchmarks/device")
    moved = {path.removeprefix("src/") for path in tracked if path.startswith("src/")}
    moved |= {f"fedtiny/_shipped/{path}" for path in tracked if not path.startswith("src/")}
    held = {name for name in inside if name.startswith("fedtiny/") and not name.endswith("/")}
    assert held == moved | {"fedtiny/native/_fedtiny_native.so"}
    assert inside["fedtiny/data/digits.npz"] == (ROOT / "src/fedtiny/data/digits.npz").read_bytes()


def test_the_sources_hold_the_repository_and_nothing_else(sources):
    with tarfile.open(sources) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert held == files() | {"PKG-INFO"}


def test_the_metadata_says_what_an_index_shows(metadata, inside):
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-4.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert b"CC BY 4.0" in inside[f"fedtiny-{__version__}.dist-info/licenses/NOTICE"]
    assert "Programming Language :: Python :: 3.14" in metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"] == "text/markdown"
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert {re.split(r"\W", line)[0] for line in required} == {
        *("numpy", "rich", "safetensors", "tomli", "tyro")
    }
    points = inside[f"fedtiny-{__version__}.dist-info/entry_points.txt"].decode()
    assert "[console_scripts]\nfedtiny = fedtiny.cli.main:main" in points


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """The programs of an environment with the wheel, torch and what they ask for."""
    place = tmp_path_factory.mktemp("clean")
    told(sys.executable, "-m", "venv", place)
    order = (
        "install",
        "--quiet",
        "--no-compile",
        "-c",
        ROOT / "constraints.txt",
        f"{wheel}[torch]",
    )
    told(place / "bin" / "pip", *order)
    return place / "bin"


def test_the_command_of_make_run_works_in_a_clean_environment(clean, tmp_path):
    (line,) = re.findall(r"^\t\$\(BIN\)/fedtiny (run .*)$", (ROOT / "Makefile").read_text(), re.M)
    said = told(clean / "fedtiny", *line.split(), cwd=tmp_path)
    (result,) = tmp_path.glob("runs/*/result.json")
    found = json.loads(result.read_text())
    assert found["accuracy"] > 0.95, said
    assert found["density"] <= 0.01
    config = (result.parent / "config.toml").read_text()
    assert 'device_backend = "native"' in config
    assert (result.parent / "report.html").exists()
    assert (result.parent / "model.packed").stat().st_size < 700_000


def test_an_extra_that_is_missing_is_named(clean):
    there = {path.name for path in clean.parent.glob("lib/python*/site-packages/*")}
    assert not there & {"sklearn", "PIL", "pyarrow", "scipy"}
    code = "from fedtiny.extras import require; require('PIL.Image', extra='images')"
    done = subprocess.run(
        [clean / "python", "-c", code], capture_output=True, text=True, check=False
    )
    assert "PIL is not installed; it comes with: pip install 'fedtiny[images]'" in done.stderr


def test_the_library_picks_its_kernels_when_it_runs(clean):
    """Nothing is compiled for the machine that built the wheel alone."""
    code = "from fedtiny.native.library import library, path; print(path(), library().instructions)"
    theirs = told(clean / "python", "-c", code, cwd=clean).split()
    ours = told(sys.executable, "-c", code).split()
    assert Path(theirs[0]).is_relative_to(clean.parent)
    assert theirs[0] != ours[0]
    assert theirs[1] == ours[1], "the same instruction set as a library compiled on this machine"


def test_pipx_runs_the_wheel(wheel, tmp_path):
    environment = {"PIPX_HOME": str(tmp_path), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    order = (sys.executable, "-m", "pipx", "run", "--spec", wheel, "fedtiny", "--version")
    assert __version__ in told(*order, env={**os.environ, **environment})
