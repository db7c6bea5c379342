"""Imports point one way, and torch stays out of everything that need not compute.

`make lint` holds the layers of pyproject.toml against every import statement (import-linter), and
keeps flwr to its own part (ruff). Here is what neither of them sees.
"""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import fedtiny

SOURCE = Path(fedtiny.__file__).parent
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
CONTRACTS = {part["id"]: part for part in PROJECT["tool"]["importlinter"]["contracts"]}
LEVELS = [level.replace(":", "|").split("|") for level in CONTRACTS["layers"]["layers"]]
HEIGHT = {name.strip(): -row for row, level in enumerate(LEVELS) for name in level}


def named_as_text(path):
    """Parts of fedtiny that a file names as text, perhaps to import them later."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.split(".")
            if name[0] == "fedtiny" and len(name) > 1 and name[1] in HEIGHT:
                yield name[1]


def test_the_layers_are_the_ones_we_mean():
    assert HEIGHT["data"] < HEIGHT["federation"] < HEIGHT["methods"] < HEIGHT["devices"]
    assert HEIGHT["devices"] == HEIGHT["cost"] < HEIGHT["runs"] < HEIGHT["cli"]
    assert HEIGHT["config"] == HEIGHT["errors"] < HEIGHT["data"]


def test_what_is_imported_by_name_lies_below_too():
    for path in SOURCE.rglob("*.py"):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part in HEIGHT:
            upward = [name for name in named_as_text(path) if HEIGHT[name] > HEIGHT[part]]
            assert upward == [], path


LIGHT = (
    *("fedtiny", "fedtiny.cli.main", "fedtiny.config", "fedtiny.methods"),
    *("fedtiny.federation.wire", "fedtiny.federation.rounds", "fedtiny.sparse.mask"),
)
LOAD = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "torch" not in sys.modules, f"{name} imports torch"
print(sorted(sys.modules))
"""


def test_torch_is_not_loaded_with_what_does_not_compute():
    order = [sys.executable, "-c", LOAD, *LIGHT]
    run = subprocess.run(order, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "'fedtiny.methods.fedtiny'" in run.stdout


def test_help_does_not_load_torch():
    code = "import sys; from fedtiny.cli.main import dispatch; dispatch([]); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in run.stdout.splitlines()[-1].split()
