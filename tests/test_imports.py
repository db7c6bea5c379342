"""Imports point one way, and torch stays out of everything that need not compute."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import fedtiny

SOURCE = Path(fedtiny.__file__).parent
BELOW_ALL = (
    *("config", "cores", "deprecated", "errors", "extras", "files", "randomness", "suggest"),
)
ORDER = (
    *("graph", "data", "models", "sparse", "native", "federation", "methods"),
    *("devices", "runs", "bench", "compare", "reproduce", "report", "export", "finish"),
    *("flower", "cli"),
)
BESIDE = {"cost": ("methods", "runs")}  # sees what comes up to the one, is seen from the other on
WITHOUT_TORCH = ("sparse", "federation", "config", "methods", "errors")
MODULES = {path.relative_to(SOURCE): path for path in sorted(SOURCE.rglob("*.py"))}
KNOWN = {*BELOW_ALL, *ORDER, *BESIDE}
FACADE = ("__init__", "__main__")


def part_of(path):
    """The part of the package that a file belongs to; the package's own two files are above all."""
    return path.parts[0].removesuffix(".py")


PARTS = {str(path): path for path in MODULES if part_of(path) in KNOWN}


def imported(path):
    """Every module that a file names: in an import, for types only, or as text to import later."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[path].read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str() as module, names=names, level=0):
                found |= {module} | {f"{module}.{alias.name}" for alias in names}
            case ast.ImportFrom():
                raise AssertionError(f"{path} has a relative import")
            case ast.Constant(value=str() as text) if text.startswith("fedtiny."):
                found.add(text)
            case ast.JoinedStr(values=[ast.Constant(value=str() as text), *_]):
                found |= {text} if text.startswith("fedtiny.") else set()
    return found


def parts(path):
    """The parts of fedtiny that a file names."""
    names = (name.split(".") for name in imported(path))
    return {name[1] for name in names if name[0] == "fedtiny" and len(name) > 1} & KNOWN


def up_to(part):
    return set(ORDER[: ORDER.index(part) + 1])


def allowed(part):
    """The parts that a part may name."""
    if part in BELOW_ALL:
        return set(BELOW_ALL)
    if part in BESIDE:
        return {*BELOW_ALL, part, *up_to(BESIDE[part][0])}
    beside = {name for name, (_, first) in BESIDE.items() if first in up_to(part)}
    return {*BELOW_ALL, *up_to(part), *beside}


def test_every_part_has_its_place():
    found = {part_of(path) for path in MODULES} - {*FACADE}
    assert found <= KNOWN, "give a new part its place in ORDER or BESIDE"


@pytest.mark.parametrize("file", PARTS)
def test_imports_point_one_way(file):
    assert parts(PARTS[file]) <= allowed(part_of(PARTS[file]))


def test_the_way_is_the_one_we_mean():
    assert "devices" not in allowed("methods")
    assert "methods" in allowed("devices")
    assert "cost" in allowed("cli")
    assert "cost" not in allowed("devices")
    assert "runs" not in allowed("cost")
    assert "data" not in allowed("config")


@pytest.mark.parametrize("file", [f for f, path in PARTS.items() if part_of(path) in WITHOUT_TORCH])
def test_what_does_not_compute_does_not_name_torch(file):
    assert "torch" not in {name.partition(".")[0] for name in imported(PARTS[file])}


LIGHT = ("fedtiny", "fedtiny.cli.main", "fedtiny.methods", "fedtiny.federation.wire")


@pytest.mark.parametrize("module", [*LIGHT, "fedtiny.config", "fedtiny.federation.rounds"])
def test_torch_is_not_loaded_with(module):
    code = f"import sys, {module}; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_everything_light_together_still_leaves_torch_out():
    code = f"import sys, {', '.join(LIGHT)}; print(sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "'torch'" not in run.stdout
    assert "'fedtiny.methods.fedtiny'" in run.stdout


def test_flwr_is_named_in_its_own_part_only():
    naming = {p for p in MODULES if "flwr" in {name.partition(".")[0] for name in imported(p)}}
    assert {part_of(path) for path in naming} == {"flower"}
